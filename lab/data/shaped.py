"""Shaped data: segments drawn by class of length, joined documents cut as planned, ids placed as planned.

    choose   the draws of a cycle are divided among the classes of length; the k-th draw of a class is its segment
             k mod n of a shuffle of the class's n segments, another shuffle for every pass
    pack     blocks of joined documents, each cut to the cycle's lengths in one shuffled order
    skip     full windows; each draws a layout of its ids with the plan's probabilities
    weights  segments as without a shape; the plan holds the loss weights

Every draw is a function of (seed, global sample index), located without reading the draws before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.data.config import DataConfig
from lab.data.groups import cached, segment_counts
from lab.data.order import mix, shuffled
from lab.data.packing import AssignIds
from lab.data.segments import (
    ConcatenatedSegments,
    CutSegments,
    IntArray,
    NaturalSegments,
    SegmentIndex,
    index_segments,
)
from lab.data.shards import Shard, TokenStore
from lab.data.target_counts import target_counts
from lab.masks import Causal, WindowMask
from lab.shape.components import choosing, layouts, length_classes, packing, packing_lengths, skipping
from lab.shape.config import Choose, Gaps, Pack, ShapeConfig, Weights
from lab.shape.planning import CYCLE, Plan, plan_shape
from lab.shape.profiles import bin_edges, length_frequency
from lab.shape.weighing import plan_weights

PACK_CYCLE = 256  # segments of a block; few enough that a small corpus holds one


@dataclass(frozen=True, eq=False)
class Shaped:
    """A shaped corpus for training: its segments, the function that assigns ids, if any, and the plan.

    Shapes: `counts` (reach + 1,), how many natural segments have n tokens; documents are cut every `reach` tokens.
    """

    counts: np.ndarray
    plan: Plan
    segments: SegmentIndex
    skip: AssignIds | None = None


def shape_corpus(shape: ShapeConfig, data: DataConfig, store: TokenStore, mask: WindowMask = Causal()) -> Shaped:
    """Plan how a corpus is drawn or weighed, and build the segments that draw it.

    Raises: ConfigError for an unreachable target, DataError for a corpus too small to be cut as planned.
    """
    strategy, window = shape.strategy, data.window
    reach = strategy.target_len if isinstance(strategy, Gaps) else window
    counts, edges = natural_counts(store, reach), bin_edges(reach)
    if isinstance(strategy, Weights):
        plan = plan_weights(shape, target_counts(store, data.mode, window, mask.method))
        return Shaped(counts, plan, index_segments(store, data.mode, window))
    natural = length_frequency(counts)
    if isinstance(strategy, Choose):
        plan = plan_shape(shape, choosing(strategy, counts, edges), natural)
        return Shaped(counts, plan, ClassSegments(store, window, plan.draws))
    if isinstance(strategy, Pack):
        plan = plan_shape(shape, packing(window, edges), natural, cycle=PACK_CYCLE)
        order = np.repeat(packing_lengths(window), plan.draws)
        lengths = [int(order[shuffled(place, PACK_CYCLE, key=window)]) for place in range(PACK_CYCLE)]
        return Shaped(counts, plan, CutSegments(store, window, lengths, "shape.strategy.method=pack"))
    options = layouts(window, reach)
    plan = plan_shape(shape, skipping(options, window, edges), natural)
    probabilities = plan.draws / plan.draws.sum()

    def place(tokens: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        layout = options[generator.choice(len(options), p=probabilities)]
        return layout.ids(len(tokens), generator)

    return Shaped(counts, plan, ConcatenatedSegments(store, window), place)


def natural_counts(store: TokenStore, window: int) -> np.ndarray:
    """Count the segments of each length, documents cut every `window` tokens: int64 (window + 1,)."""
    counts = np.zeros(window + 1, dtype=np.int64)
    for shard in store.shards:
        full, rest = np.divmod(np.diff(shard.ends, prepend=0), window)
        counts += np.bincount(rest[rest > 0], minlength=window + 1)
        counts[window] += full.sum()
    return counts


class ClassSegments(NaturalSegments):
    """Documents cut every `window` tokens, drawn by class of length."""

    def __init__(self, store: TokenStore, window: int, draws: np.ndarray) -> None:
        super().__init__(store, window)
        self.class_starts = np.concatenate([[0], np.cumsum(draws)])  # of each class in a cycle
        self.draws = draws
        n_classes = len(draws)
        self.sorted = [by_class(shard, window) for shard in store.shards]
        sizes = np.stack([np.diff(order[: n_classes + 1]) for order in self.sorted])
        self.sizes = np.concatenate([np.zeros((1, n_classes), np.int64), sizes]).cumsum(0)  # before each shard

    def numbers(self, samples: IntArray, seed: int) -> IntArray:
        """Number the segments of global samples."""
        return np.array([self.number(sample, seed) for sample in samples.tolist()])

    def number(self, sample: int, seed: int) -> int:
        """Number the segment of a global sample."""
        cycle, place = divmod(sample, CYCLE)
        place = shuffled(place, CYCLE, key=mix(seed) ^ mix(mix(cycle)))
        kind = int(np.searchsorted(self.class_starts, place, side="right")) - 1
        drawn = cycle * int(self.draws[kind]) + place - int(self.class_starts[kind])
        n = int(self.sizes[-1, kind])
        turn, rank = divmod(drawn, n)
        rank = shuffled(rank, n, key=mix(seed) ^ mix(mix(turn) + kind))
        shard = int(np.searchsorted(self.sizes[:, kind], rank, side="right")) - 1
        order = self.sorted[shard]
        local = len(self.draws) + 1 + int(order[kind]) + rank - int(self.sizes[shard, kind])
        return int(self.starts[shard]) + int(order[local])


def by_class(shard: Shard, window: int) -> np.ndarray:
    """Sort a shard's segments by class of length: int64, where each class begins, then the segments' numbers."""

    def order() -> np.ndarray:
        counts = segment_counts(shard.ends, window)
        lengths = np.full(int(counts[-1]) if len(counts) else 0, window)
        documents = np.diff(shard.ends, prepend=0)
        lengths[counts[documents > 0] - 1] = (documents[documents > 0] - 1) % window + 1
        edges = length_classes(window)
        classes = np.searchsorted(edges, lengths, side="right") - 1
        starts = np.cumsum([0, *np.bincount(classes, minlength=len(edges) - 1)])
        return np.concatenate([starts, np.argsort(classes, kind="stable")])

    return cached(shard.folder / f".classes-{shard.split}-{window}.npy", shard.ends_digest, order)
