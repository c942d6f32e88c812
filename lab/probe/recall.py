"""Recall: what a model gains from evidence at a distance, on text as it is.

The evidence of a target is an earlier token, d places back (lab.evidence). It is scored two times, in nats and by
whether it is the most likely token: with its whole context, and with the context cut just behind the evidence.

    index          p - d       p - d + 1 .. p - 1     p
    token          evidence    what is between        target
    whole context  all of the piece before p; a piece is up to a training window of one document
    cut context    p - d + 1 .. p - 1 alone, d - 1 tokens, d >= 2

    gain(d) = mean of nats(cut) - nats(whole) over the targets whose evidence is d back

Every token of a document but its first counts as a target. Distances are in bins, half octaves from 4 tokens on, and at
most `most` targets are sampled of each. Targets without evidence can be a bin too: d = 0, whose score is nats(whole). A
bin with fewer than FEWEST targets, or targets of only one document, is omitted. Limits are quantiles over 1,000
samples of whole documents with replacement (the cluster bootstrap), as targets of one document depend on each other.

Source: the loss with a short context against that with the whole one, arXiv:2410.23771, section 3. The cut behind the
evidence is this lab's own.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lab.core.types import CONFIDENCE, IGNORE, FloatArray, IntArray, Row
from lab.evidence.methods import Evidence

NEAREST_BIN = 16  # tokens, of the nearest bin of a probe; nearer cuts take a target's nearest words from any model
FEWEST = 8  # targets of a bin
SCORES = ("nats_whole", "right_whole", "nats_cut", "right_cut")


def half_octaves(window: int, first: int = 2) -> list[int]:
    """List the first distances of the bins, from `first` on.

    Example:
        >>> half_octaves(64), half_octaves(64, NEAREST_BIN)
        ([2, 4, 6, 8, 11, 16, 23, 32, 45], [16, 23, 32, 45])
    """
    edges = [round(2 ** (k / 2)) for k in (2, *range(4, 2 * window.bit_length()))]
    return [edge for edge in edges if first <= edge <= 0.75 * window]


class ScoredModel(Protocol):
    """A model as recall uses it."""

    def scores(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Compute each target's loss in nats, and 1 where it is the most likely: int64 (B, T) both -> (2, B, T)."""


class Target(NamedTuple):
    """A target that is measured: its bin, document and piece, its place in the piece, its evidence distance."""

    bin: int
    document: int
    piece: int
    place: int
    distance: int


@dataclass(eq=False)
class RecallTest:
    """Samples targets from documents, scores them with both contexts, and averages the scores.

    `edges` are the first distances of the bins, rising from 2 or more; the last bin ends at the window. At most `most`
    targets are sampled of each. `without` adds a last bin, of targets without evidence.
    """

    documents: Iterable[np.typing.NDArray[np.integer]]
    evidence: Evidence
    window: int
    edges: Sequence[int]
    most: int
    seed: int = 0
    device: torch.device | str = "cpu"
    without: bool = False

    def __post_init__(self) -> None:
        """Find the evidence of all targets, and sample those of each bin; `shares` are the bins' shares of all."""
        self.pieces: list[IntArray] = []
        owners: list[int] = []  # the document of each piece
        for number, ids in enumerate(self.documents):
            for start in range(0, len(ids) - 1, self.window):
                # Pieces share one token: the target of the last token of a piece is the first of the next.
                self.pieces.append(np.asarray(ids[start : start + self.window + 1], dtype=np.int64))
                owners.append(number)
        self.bins = [*zip(self.edges, [*(np.array(self.edges[1:]) - 1).tolist(), self.window], strict=True)]
        if self.without:
            self.bins.append((0, 0))
        self.targets: list[Target] = []
        self.shares = [0.0] * len(self.bins)
        if not self.pieces:
            return
        lengths = [len(piece) - 1 for piece in self.pieces]
        tokens, targets = (np.concatenate([piece[part] for piece in self.pieces]) for part in (np.s_[:-1], np.s_[1:]))
        distances = self.evidence.distances(tokens, targets, lengths)
        places = np.concatenate([np.arange(n) + 1 for n in lengths])
        table = np.stack([np.repeat(range(len(lengths)), lengths), places, distances], axis=1)
        generator = np.random.default_rng(self.seed)
        for number, (low, high) in enumerate(self.bins):
            inside = np.flatnonzero((distances >= low) & (distances <= high))
            self.shares[number] = len(inside) / len(distances)
            sampled, documents = [], set()
            for piece, place, distance in table[np.sort(generator.permutation(inside)[: self.most])].tolist():
                sampled.append(Target(number, owners[piece], piece, place, distance))
                documents.add(owners[piece])
            # The limits resample documents, so that a bin of one document has none.
            if len(sampled) >= FEWEST and len(documents) > 1:
                self.targets += sampled

    def scores(
        self, model: ScoredModel, targets: Sequence[Target], done: Callable[[int], object] = lambda _: None
    ) -> FloatArray:
        """Score targets with both contexts; `done` is called with the number of contexts of each pass.

        Contexts of about one length are read side by side, padded after their ends, where no
        token that is scored sees it.

        Shapes: (targets, 4), in the columns of SCORES; without evidence both contexts are the whole one.
        """
        # Each text ends with its target.
        texts = [self.pieces[target.piece][: target.place + 1] for target in targets]
        texts += [text[-target.distance :] for text, target in zip(texts, targets)]
        out = np.zeros((2, len(texts)))
        # Longest first, so that the texts of a pass have about one length and little padding.
        waiting = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
        while waiting:
            # More than 4,096 tokens, with padding, exceed the caches of a CPU.
            rows = max(1, 4096 // len(texts[waiting[0]]))
            numbers, waiting = waiting[:rows], waiting[rows:]
            contexts = [torch.from_numpy(texts[number][:-1]) for number in numbers]
            tokens = pad_sequence(contexts, batch_first=True)
            wanted = torch.full_like(tokens, IGNORE)
            # The target, the last token of a text, is not read: it is predicted at the index before.
            for row, number in zip(wanted, numbers):
                row[len(texts[number]) - 2] = int(texts[number][-1])
            out[:, numbers] = model.scores(tokens.to(self.device), wanted.to(self.device)).sum(-1).cpu().numpy()
            done(len(numbers))
        return np.concatenate(np.split(out, 2, axis=1)).T

    def summarize(self, scores: FloatArray) -> list[Row]:
        """Average the scores of all targets by bin, with limits.

        Shapes: scores (targets, 4).
        """
        if not self.targets:
            return []
        of_bins, of_documents, _, _, distances = np.array(self.targets).T
        bins, columns = np.unique(of_bins, return_inverse=True)
        documents, rows = np.unique(of_documents, return_inverse=True)
        # Without evidence there is no cut, and the score is the loss itself.
        value = np.where(distances > 0, scores[:, 2] - scores[:, 0], scores[:, 0])
        size = len(documents)
        sums = np.zeros((size, len(bins), 7))
        parts = np.ones(len(value)), scores, value, np.log(np.maximum(distances, 1))
        np.add.at(sums, (rows, columns), np.column_stack(parts))
        samples = np.random.default_rng(self.seed).multinomial(size, np.full(size, 1 / size), 1000)
        n, *of_scores, values, logs = np.moveaxis(np.tensordot(np.vstack([np.ones(size), samples]), sums, 1), 2, 0)
        # Each row is a sample of documents, the first one all of them once. Sums are sampled instead of means, so that
        # long documents weigh more. A bin that a sample lacks is nan, which the quantiles skip.
        with np.errstate(invalid="ignore"):
            values = values / n  # of all documents first, then of each sample
        lows, highs = np.nanquantile(values[1:], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
        first, last = np.array(self.bins)[bins].T
        columns_by_name = {
            "distance": first,
            "last": last,
            "middle": np.exp(logs[0] / n[0]),
            "share": np.array(self.shares)[bins],
            "n": n[0].astype(int),
            "documents": np.count_nonzero(sums[:, :, 0], axis=0),
            **dict(zip(SCORES, (totals[0] / n[0] for totals in of_scores))),
            "score": values[0],
            "low": lows,
            "high": highs,
        }
        by_bin = zip(*(column.tolist() for column in columns_by_name.values()))
        return [dict(zip(columns_by_name, row)) for row in by_bin]
