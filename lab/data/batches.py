"""Batches: a pack as one row of attention, as tensors for the device, made ahead by a thread.

All that the device needs is a tensor here: a step that copied host values would wait for it. The thread packs while a
step computes, which holds Python's lock only to queue its kernels.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lab.counts import targets_by_context, visible_context
from lab.data.packing import IGNORE, Pack, PackStream

Batch = dict[str, Any]
FloatArray = npt.NDArray[np.float64]
PREFETCH = 4  # packs that a thread makes ahead


class Batches:
    """The packs of some streams in turn, endless; a thread makes `prefetch` of them ahead, in the same order.

    `weights` as in `to_batch`. What making a batch raises is raised where that batch is due. The thread
    ends with the iterator.
    """

    def __init__(self, streams: list[PackStream], prefetch: int, weights: FloatArray | None = None) -> None:
        self.streams, self.prefetch, self.weights = streams, prefetch, weights

    def __iter__(self) -> Iterator[Batch]:
        """Yield all batches."""
        batches = self.made()
        return self.ahead(batches) if self.prefetch else batches

    def made(self) -> Iterator[Batch]:
        """Yield one pack of each stream, again and again, in pinned memory where there is a GPU."""
        pins = torch.cuda.is_available()
        for stream in itertools.cycle(self.streams):
            batch = to_batch(next(stream), self.weights)
            yield {name: x.pin_memory() if isinstance(x, Tensor) else x for name, x in batch.items()} if pins else batch

    def ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield batches that a thread has made ahead."""
        pool = ThreadPoolExecutor(1, "packing")
        try:
            waiting = deque(pool.submit(next, batches) for _ in range(self.prefetch))
            while True:
                batch = waiting.popleft().result()
                waiting.append(pool.submit(next, batches))
                yield batch
        finally:
            if not sys.is_finalizing():  # then the thread has ended
                pool.shutdown(cancel_futures=True)


def to_batch(pack: Pack, weights: FloatArray | None = None) -> Batch:
    """Convert a pack to a training batch: tensors to move to the device, and values that stay on the host.

    `weights` is the loss weight of a target by its visible context; left out, all weigh 1.

    Shapes: weights float64, longer than the longest run.
    """
    ids, scored, n_tokens = pack.position_ids, pack.targets != IGNORE, len(pack.tokens)
    return {
        "tokens": torch.from_numpy(pack.tokens)[None],
        "targets": torch.from_numpy(pack.targets)[None],
        "cu_seqlens": ends(pack.lengths),
        "lengths": tuple(pack.lengths),
        "position_ids": ids_from_0(pack.lengths, n_tokens) if ids is None else torch.from_numpy(ids),
        "starts": starts_of(pack),
        "anchors": pack.anchors,
        "counted": ids,
        "selected": pack.selected,
        "n_targets": int(np.count_nonzero(scored)),
        "supervised": targets_by_context(pack.lengths, pack.anchors, scored),
        "weights": None if weights is None else loss_weights(pack, scored, weights)[None],
        "stream": pack.stream,
        "state": pack.state,
    }


def loss_weights(pack: Pack, scored: np.ndarray, weights: FloatArray) -> Tensor:
    """Look up the loss weight of every target: float32 (pack_tokens,), 0 where nothing is scored."""
    out = np.zeros(len(scored), dtype=np.float32)
    context = visible_context(pack.lengths, pack.anchors)
    out[: len(context)] = weights[context]
    return torch.from_numpy(out * scored)


def starts_of(pack: Pack) -> tuple[int, ...] | None:
    """Return the first id of each run if ids count up by one from it, else None."""
    if pack.position_ids is None:
        return (0,) * len(pack.lengths)
    ends = np.cumsum(pack.lengths)
    steps = np.diff(pack.position_ids[: ends[-1]])
    steps[ends[:-1] - 1] = 1  # ids may jump between runs
    begins = ends - pack.lengths
    return tuple(pack.position_ids[begins].tolist()) if (steps == 1).all() else None


def ids_from_0(lengths: Sequence[int], n_tokens: int) -> Tensor:
    """Count from 0 in every run, and in the padding.

    Example:
        >>> ids_from_0([3, 2], 8).tolist()
        [0, 1, 2, 0, 1, 0, 1, 2]
    """
    return torch.from_numpy(np.concatenate([np.arange(n) for n in (*lengths, n_tokens - sum(lengths))]))


def ends(lengths: Sequence[int]) -> Tensor:
    """Add up lengths from 0, int32 (S + 1,)."""
    return torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32))
