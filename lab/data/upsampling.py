"""Long documents more often and short ones less within each source, so that the mixture of sources is kept.

    w(s, long)  = g r T_s / A_s                copies of a document of source s with more than `longer_than` tokens
    w(s, short) = g (1 - r) T_s / (T_s - A_s)  and of one with as many or fewer, both in expectation
    g = tokens / (sum of T_s over s)           1 where `tokens` is left out

T_s are the tokens of source s, A_s those of them in long documents, r is `share`. Source s then has g T_s tokens, r of
them in long documents: every source keeps its share of the tokens and changes in length. A source without long
documents, with nothing else, or with A_s >= r T_s already has w = g for all its documents.

Copies: the k-th document of its source and class (long or short), shard after shard and sorted by length within a
shard, is copied floor(k w + u) - floor((k - 1) w + u) times, with one uniform number u for each class. So a document is
copied w times in expectation, a class is off by less than one copy, and in one shard by at most as many tokens as its
longest document has (summation by parts, for lengths rise).

Source: Fu et al. 2024, arXiv:2402.10171, as used in AnchorAttention (arXiv:2411.13476, section 4.1 and appendix C) and
LongRecipe (arXiv:2409.00509, section 5.2). In AnchorAttention's Table 9 the shares of sources change by up to 7 points;
here none changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lab.data.config import Upsample
from lab.errors import DataError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

KEPT = ("no long documents", "no short documents", "long enough already")  # why a source keeps its lengths
SEED = 0  # of the choice of copied documents, and of their order
OFFSETS = 2**20  # values of u, few enough that k + u is exact in float64 for every k below 2**33


def weigh(tokens: Ints, upsample: Upsample) -> tuple[Floats, list[str | None]]:
    """Compute the expected copies by source and class, and for each source why it keeps its lengths, or None.

    Shapes: `tokens` int64 (n_sources, 2) of short and of long documents; weights float64 (n_sources, 2).
    Example:
        >>> weights, kept = weigh(np.array([[700, 300], [500, 0]]), Upsample(share=0.6))
        >>> weights.round(3).tolist(), kept
        ([[0.571, 2.0], [1.0, 1.0]], [None, 'no long documents'])
    """
    share, total = upsample.share, tokens.sum(1)
    weights = np.ones(tokens.shape)
    kept: list[str | None] = []
    for source, (short, long) in enumerate(tokens.tolist()):
        reasons = (long == 0, short == 0, long >= share * (short + long))
        kept.append(next((why for why, holds in zip(KEPT, reasons) if holds), None))
        if kept[-1] is None:
            weights[source] = (1 - share) * total[source] / short, share * total[source] / long
    return weights * (1 if upsample.tokens is None else upsample.tokens / int(total.sum())), kept


def refuse_no_change(kept: Sequence[str | None], upsample: Upsample, longest: int) -> None:
    """Refuse settings that change the lengths of no source.

    Raises: DataError.
    """
    if None in kept:
        return
    if all(why == KEPT[0] for why in kept):
        raise DataError(
            f"data.upsample.longer_than={upsample.longer_than}: nothing to upsample, the longest document has "
            f"{longest} tokens; lower it"
        )
    counts = ", ".join(f"{kept.count(why)} {why}" for why in KEPT if why in kept)
    raise DataError(
        f"data.upsample.share={upsample.share}: changes no source (of {len(kept)}: {counts}); raise it, or change "
        "data.upsample.longer_than"
    )


def draw_offsets(n_classes: int, seed: int = SEED) -> Floats:
    """Draw u for every class, a multiple of 1 / OFFSETS in [0, 1)."""
    return np.random.default_rng(seed).integers(OFFSETS, size=n_classes) / OFFSETS


def copies_of(lengths: Ints, classes: Ints, before: Ints, weights: Floats, offsets: Floats) -> Ints:
    """Count the copies of every document of a shard.

    Shapes: `lengths`, `classes` int64 (documents,); `before` int64 (n_classes,), documents of each class in earlier
        shards; `weights`, `offsets` (n_classes,); the copies int64 (documents,).
    Example:
        >>> one = np.zeros(4, dtype=np.int64)  # four documents of one class; k w + u is 0.75, 1.25, 1.75, 2.25
        >>> copies_of(np.array([9, 1, 5, 7]), one, np.array([0]), np.array([0.5]), np.array([0.25])).tolist()
        [1, 0, 1, 0]
    """
    order = np.lexsort((lengths, classes))
    sorted_classes = classes[order]
    first = np.searchsorted(sorted_classes, np.arange(len(before)))
    numbers = before[sorted_classes] + np.arange(len(order)) - first[sorted_classes]
    w, u = weights[sorted_classes], offsets[sorted_classes]
    copies = np.empty(len(order), dtype=np.int64)
    copies[order] = np.floor((numbers + 1) * w + u) - np.floor(numbers * w + u)
    return copies


def spread(copies: Ints, generator: np.random.Generator) -> Ints:
    """Order a shard's copies: copy j = 0 .. m - 1 of a document at (j + r) / m of the whole, r its random number.

    Lengths and sources are thus mixed evenly, and the copies of a document are an m-th of the shard apart.

    Shapes: `copies` int64 (documents,); the order int64 (sum of copies,), indices of documents.
    """
    documents = np.repeat(np.arange(len(copies)), copies)
    turn = np.arange(len(documents)) - np.repeat(np.cumsum(copies) - copies, copies)
    places = (turn + generator.random(len(copies))[documents]) / copies[documents]
    return parted(documents[np.argsort(places, kind="stable")])


def parted(order: Ints) -> Ints:
    """Swap documents until no two copies of one are neighbours, as far as single swaps allow.

    Shapes: `order` int64 (n,), indices of documents; the result holds the same ones.
    Example:
        >>> parted(np.array([7, 7, 1, 2])).tolist(), parted(np.array([1, 7, 7])).tolist()
        ([7, 1, 7, 2], [7, 1, 7])
    """
    for _ in range(2):  # a copy without a partner in one direction may have one in the other
        order = order.copy()
        for place in (np.flatnonzero(order[1:] == order[:-1]) + 1).tolist():
            choices = partners(order, place)
            if order[place] == order[place - 1] and len(choices):
                order[[place, choices[0]]] = order[[choices[0], place]]
        order = order[::-1]
    return order


def partners(order: Ints, place: int) -> Ints:
    """Return the places whose documents can be swapped with that at `place` without making copies neighbours."""
    left, here, right = (np.concatenate([[-1] * k, order, [-1] * (2 - k)])[1:-1] for k in (2, 1, 0))
    own, after = here[place], right[place]
    free = (here != own) & (here != after) & (left != own) & (right != own)
    if place + 1 < len(order):  # its left neighbour is the copy that is swapped
        free[place + 1] = after != own and right[place + 1] != own
    found: Ints = np.flatnonzero(free)
    return found
