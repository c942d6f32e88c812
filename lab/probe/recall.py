"""Recall: what a model gains from evidence at a distance, on text as it is.

The evidence of a target is an earlier token, d places back (lab.evidence). The target is scored twice, in nats and by
whether it is the most likely token: with its whole context, and with the context cut just behind the evidence.

    place          p - d       p - d + 1 .. p - 1     p
    token          evidence    what is between        target
    whole context  all of the piece before p; a piece is up to a training window of one document
    cut context    p - d + 1 .. p - 1 alone, d - 1 tokens, d >= 2

    gain(d) = mean of nats(cut) - nats(whole) over the targets whose evidence lies d back

Every token of a document but its first counts as a target. Distances are in bins, half octaves from 4 tokens on, and at
most so many targets are drawn of each. Targets without evidence can be a bin too: d = 0, whose score is nats(whole). A
bin with fewer than FEWEST targets, or targets of one document alone, is left out. Limits are quantiles over RESAMPLES
draws of whole documents with replacement (the cluster bootstrap), as targets of one document depend on each other.

**Natural reach**: the farthest distance at which the gain is half of its plateau. The gains of the bins from NEAR
tokens on are fitted by the non-increasing curve nearest in squares, weighted by targets. Its first value is the
plateau. The curve is linear in the log of distance between bins, each at the geometric mean of its targets' distances.
Natural reach is where it falls below half of the plateau. Nearer cuts leave less than a sentence: they take a target's
nearest words from any model. Where the curve stays above half, natural reach is the last bin's distance or more, and
its high limit is None. It is None where the plateau's lower limit is not above 0.

Source: the loss with a short context against that with the whole one, arXiv:2410.23771, section 3. The cut behind the
evidence and natural reach are this lab's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import isotonic_regression
from torch.nn.utils.rnn import pad_sequence

from lab.counts import Counted, f_at
from lab.evidence.base import IGNORE, Evidence, IntArray
from lab.probe.limits import Floats, crossing

NEAR = 16  # tokens, of the nearest bin that counts for natural reach
FEWEST = 8  # targets of a bin
LAST_BIN = 0.75  # of the window, up to which bins begin
RESAMPLES = 1000
TOKENS_AT_ONCE = 4096  # of one pass, with padding; more exceed the caches of a CPU
SCORES = ("nats_whole", "right_whole", "nats_cut", "right_cut")
REACH = ("natural_reach", "natural_reach_low", "natural_reach_high", "f_at_natural_reach")
FIELDS = (*REACH, "natural_first", "natural_last", "plateau")
Row = dict[str, Any]


def half_octaves(window: int, first: int = 2) -> list[int]:
    """List the first distances of the bins, from `first` on.

    Example:
        >>> half_octaves(64), half_octaves(64, NEAR)
        ([2, 4, 6, 8, 11, 16, 23, 32, 45], [16, 23, 32, 45])
    """
    edges = [2, *(round(2 ** (k / 2)) for k in range(4, 2 * window.bit_length()))]
    return [edge for edge in edges if first <= edge <= LAST_BIN * window]


class Target(NamedTuple):
    """A target that is measured: its bin, document and piece, its place in the piece, its evidence distance."""

    bin: int
    document: int
    piece: int
    place: int
    distance: int


@dataclass(eq=False)
class RecallTest:
    """Draws targets from documents, scores them with both contexts, and sums up what was found.

    `edges` are the first distances of the bins, rising from 2 or more; the last bin ends at the window. At most `most`
    targets are drawn of each. `without` adds a last bin, of targets without evidence. `stored` are the distances
    of a stored method, of all tokens of the documents but their first ones.
    """

    documents: Iterable[npt.NDArray[Any]]
    evidence: Evidence
    window: int
    edges: Sequence[int]
    most: int
    seed: int = 0
    device: torch.device | str = "cpu"
    without: bool = False
    stored: IntArray | None = None

    def __post_init__(self) -> None:
        """Find the evidence of all targets, and draw those of each bin; `shares` are the bins' shares of all."""
        found = [
            (number, np.asarray(ids[start : start + self.window + 1], dtype=np.int64))
            for number, ids in enumerate(self.documents)
            for start in range(0, len(ids) - 1, self.window)
        ]
        self.bins = [*zip(self.edges, [*(edge - 1 for edge in self.edges[1:]), self.window], strict=True)]
        self.bins += [(0, 0)] * self.without
        self.pieces = [piece for _, piece in found]
        self.targets: list[Target] = []
        self.shares = [0.0] * len(self.bins)
        if not found:
            return
        lengths = [len(piece) - 1 for piece in self.pieces]
        tokens, targets = (np.concatenate([piece[part] for piece in self.pieces]) for part in (np.s_[:-1], np.s_[1:]))
        distances = self.evidence.distances(tokens, targets, lengths, self.stored)
        owners = np.repeat(np.arange(len(lengths)), lengths)
        places = np.concatenate([np.arange(1, length + 1) for length in lengths])
        generator = np.random.default_rng(self.seed)
        for number, (low, high) in enumerate(self.bins):
            inside = np.flatnonzero((distances >= low) & (distances <= high))
            self.shares[number] = len(inside) / len(tokens)
            chosen = np.sort(generator.permutation(inside)[: self.most])
            rows = zip(*(each[chosen].tolist() for each in (owners, places, distances)))
            drawn = [Target(number, found[piece][0], piece, place, distance) for piece, place, distance in rows]
            if len(drawn) >= FEWEST and len({target.document for target in drawn}) > 1:
                self.targets += drawn

    def scores(self, model: Any, targets: Sequence[Target], done: Callable[[int], object] = lambda _: None) -> Floats:
        """Score targets with both contexts; `done` is called with the number of contexts of each pass.

        The model has `scores`. Contexts of about one length are read side by side, padded after their ends, where no
        token that is scored sees it.

        Shapes: (targets, 4), in the columns of SCORES; without evidence both contexts are the whole one.
        """
        texts = [self.pieces[each.piece][: each.place + 1] for each in targets]  # each ended by its target
        texts += [text[-each.distance :] for text, each in zip(texts, targets)]
        out = np.zeros((2, len(texts)))
        waiting = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
        while waiting:
            rows = max(1, TOKENS_AT_ONCE // len(texts[waiting[0]]))
            numbers, waiting = waiting[:rows], waiting[rows:]
            own = [torch.from_numpy(texts[number]) for number in numbers]
            tokens = pad_sequence([text[:-1] for text in own], batch_first=True)
            wanted = torch.full_like(tokens, IGNORE)
            for row, text in zip(wanted, own):
                row[len(text) - 2] = text[-1]
            out[:, numbers] = model.scores(tokens.to(self.device), wanted.to(self.device)).sum(-1).cpu().numpy()
            done(len(numbers))
        return np.concatenate(np.split(out, 2, axis=1)).T

    def found(self, scores: Floats, counts: Counted | None = None, confidence: float = 0.95) -> tuple[list[Row], Row]:
        """Average the scores of all targets by bin, with limits, and find natural reach, with f there.

        Shapes: scores (targets, 4).
        """
        if not self.targets:
            return [], dict.fromkeys(FIELDS)
        bins, columns = np.unique([each.bin for each in self.targets], return_inverse=True)
        documents, rows = np.unique([each.document for each in self.targets], return_inverse=True)
        distances = np.array([each.distance for each in self.targets])
        value = np.where(distances > 0, scores[:, 2] - scores[:, 0], scores[:, 0])
        size = len(documents)
        sums = np.zeros((size, len(bins), 7))
        parts = np.ones(len(value)), scores, value, np.log(np.maximum(distances, 1))
        np.add.at(sums, (rows, columns), np.column_stack(parts))
        drawn = np.random.default_rng(self.seed).multinomial(size, np.full(size, 1 / size), RESAMPLES)
        n, *of_scores, values, logs = np.moveaxis(np.tensordot(np.vstack([np.ones(size), drawn]), sums, 1), 2, 0)
        with np.errstate(invalid="ignore"):  # a bin that a draw lacks is nan
            values = values / n  # of all documents first, then of each draw
        ends = (1 - confidence) / 2, (1 + confidence) / 2
        lows, highs = np.nanquantile(values[1:], ends, axis=0)
        middles = np.exp(logs[0] / n[0])
        lines = [
            {
                **dict(zip(("distance", "last"), self.bins[number], strict=True)),
                "middle": float(middles[k]),
                "share": self.shares[number],
                "n": int(n[0, k]),
                "documents": int(np.count_nonzero(sums[:, k, 0])),
                **{name: float(each[0, k] / n[0, k]) for name, each in zip(SCORES, of_scores, strict=True)},
                "score": float(values[0, k]),
                "low": float(lows[k]),
                "high": float(highs[k]),
            }
            for k, number in enumerate(bins.tolist())
        ]
        far = np.array(self.bins)[bins, 0] >= NEAR
        return lines, natural_reach(middles[far], values[:, far], n[:, far], ends, counts)


def half_of_plateau(distances: Floats, gains: Floats, weights: Floats) -> tuple[float, float]:
    """Find the plateau of gains by distance, and the farthest distance at which they are half of it.

    Bins without weight are left out. The distance is 0 where the plateau is not above 0.

    Example:
        >>> found = half_of_plateau(np.array([16.0, 32.0, 64.0]), np.array([1.0, 0.75, 0.25]), np.ones(3))
        >>> [round(each, 3) for each in found]  # half way from 32 to 64 in their logs
        [1.0, 45.255]
    """
    known = weights > 0
    if not known.any():
        return 0.0, 0.0
    curve = isotonic_regression(gains[known], weights=weights[known], increasing=False).x
    plateau = float(curve[0])
    return plateau, float(np.exp(crossing(np.log(distances[known]), curve, plateau / 2)[1])) if plateau > 0 else 0.0


def natural_reach(
    distances: Floats, gains: Floats, weights: Floats, ends: tuple[float, float], counts: Counted | None
) -> Row:
    """Build the fields of a summary about natural reach; all are None where fewer than two bins count.

    Shapes: distances (bins,); gains and weights (1 + RESAMPLES, bins), of all documents first.
    """
    found: Row = dict.fromkeys(FIELDS)
    if len(distances) < 2:
        return found
    (plateau, reach), *others = (half_of_plateau(distances, *each) for each in zip(gains, weights, strict=True))
    plateaus, reaches = np.array(others).T
    first, last = distances[[0, -1]].tolist()
    if np.quantile(plateaus, ends[0]) > 0:
        low, high = np.quantile(reaches, ends, method="nearest").tolist()
        limits = round(reach, 1), round(low, 1), None if high >= last else round(high, 1)
        found |= dict(zip(REACH, (*limits, f_at(counts, int(reach))), strict=True))
    return found | {"natural_first": round(first, 1), "natural_last": round(last, 1), "plateau": plateau}
