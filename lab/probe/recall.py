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

Source: the loss with a short context against that with the whole one, arXiv:2410.23771, section 3. The cut behind the
evidence is this lab's own.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from lab.core.arrays import IGNORE, IntArray
from lab.core.rows import Row
from lab.evidence.base import Evidence
from lab.probe.limits import Floats

NEAR = 16  # tokens, of the nearest bin of a probe; nearer cuts take a target's nearest words from any model
FEWEST = 8  # targets of a bin
LAST_BIN = 0.75  # of the window, up to which bins begin
RESAMPLES = 1000
TOKENS_AT_ONCE = 4096  # of one pass, with padding; more exceed the caches of a CPU
SCORES = ("nats_whole", "right_whole", "nats_cut", "right_cut")


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

    documents: Iterable[np.typing.NDArray[Any]]
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
        numbered = []
        for number, ids in enumerate(self.documents):
            for start in range(0, len(ids) - 1, self.window):
                # pieces share one token: the target of the last token of a piece is the first of the next
                numbered.append((number, np.asarray(ids[start : start + self.window + 1], dtype=np.int64)))
        self.bins = [*zip(self.edges, [*(edge - 1 for edge in self.edges[1:]), self.window], strict=True)]
        if self.without:
            self.bins.append((0, 0))
        self.pieces = [piece for _, piece in numbered]
        self.targets: list[Target] = []
        self.shares = [0.0] * len(self.bins)
        if not numbered:
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
            rows = zip(*(values[chosen].tolist() for values in (owners, places, distances)))
            drawn = [Target(number, numbered[piece][0], piece, place, distance) for piece, place, distance in rows]
            if len(drawn) >= FEWEST and len({target.document for target in drawn}) > 1:
                self.targets += drawn

    def scores(self, model: Any, targets: Sequence[Target], done: Callable[[int], object] = lambda _: None) -> Floats:
        """Score targets with both contexts; `done` is called with the number of contexts of each pass.

        The model has `scores`. Contexts of about one length are read side by side, padded after their ends, where no
        token that is scored sees it.

        Shapes: (targets, 4), in the columns of SCORES; without evidence both contexts are the whole one.
        """
        texts = [self.pieces[target.piece][: target.place + 1] for target in targets]  # each ended by its target
        texts += [text[-target.distance :] for text, target in zip(texts, targets)]
        out = np.zeros((2, len(texts)))
        # Longest first, so that the texts of a pass have about one length and little padding.
        waiting = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
        while waiting:
            rows = max(1, TOKENS_AT_ONCE // len(texts[waiting[0]]))
            numbers, waiting = waiting[:rows], waiting[rows:]
            contexts = [torch.from_numpy(texts[number]) for number in numbers]
            tokens = pad_sequence([text[:-1] for text in contexts], batch_first=True)
            wanted = torch.full_like(tokens, IGNORE)
            # The target, the last token of a text, is not read: it is predicted at the index before.
            for row, text in zip(wanted, contexts):
                row[len(text) - 2] = text[-1]
            out[:, numbers] = model.scores(tokens.to(self.device), wanted.to(self.device)).sum(-1).cpu().numpy()
            done(len(numbers))
        return np.concatenate(np.split(out, 2, axis=1)).T

    def summarize(self, scores: Floats, confidence: float = 0.95) -> list[Row]:
        """Average the scores of all targets by bin, with limits.

        Shapes: scores (targets, 4).
        """
        if not self.targets:
            return []
        bins, columns = np.unique([target.bin for target in self.targets], return_inverse=True)
        documents, rows = np.unique([target.document for target in self.targets], return_inverse=True)
        distances = np.array([target.distance for target in self.targets])
        value = np.where(distances > 0, scores[:, 2] - scores[:, 0], scores[:, 0])
        size = len(documents)
        sums = np.zeros((size, len(bins), 7))
        parts = np.ones(len(value)), scores, value, np.log(np.maximum(distances, 1))
        np.add.at(sums, (rows, columns), np.column_stack(parts))
        drawn = np.random.default_rng(self.seed).multinomial(size, np.full(size, 1 / size), RESAMPLES)
        n, *of_scores, values, logs = np.moveaxis(np.tensordot(np.vstack([np.ones(size), drawn]), sums, 1), 2, 0)
        # Each row is a sample of documents, the first one all of them once. Sums are drawn instead of means, so that
        # long documents weigh more. A bin that a sample lacks is nan, which the quantiles skip.
        with np.errstate(invalid="ignore"):
            values = values / n  # of all documents first, then of each draw
        ends = (1 - confidence) / 2, (1 + confidence) / 2
        lows, highs = np.nanquantile(values[1:], ends, axis=0)
        middles = np.exp(logs[0] / n[0])
        return [
            {
                **dict(zip(("distance", "last"), self.bins[number], strict=True)),
                "middle": float(middles[k]),
                "share": self.shares[number],
                "n": int(n[0, k]),
                "documents": int(np.count_nonzero(sums[:, k, 0])),
                **{name: float(totals[0, k] / n[0, k]) for name, totals in zip(SCORES, of_scores, strict=True)},
                "score": float(values[0, k]),
                "low": float(lows[k]),
                "high": float(highs[k]),
            }
            for k, number in enumerate(bins.tolist())
        ]
