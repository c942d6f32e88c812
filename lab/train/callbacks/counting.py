"""Counts what attention saw: the segments of every pack that was trained on, over all ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import lightning
import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.callbacks import Callback
from torch import distributed

from lab.counts import COUNTED, PositionCounts
from lab.positions import Distance

SELECTED = ("samples", "samples_unmatched", "samples_short")
"""Samples made of selected sentences; those without an impactful token; those shorter than data.window."""
COUNTED_OF_PACK = ("lengths", "counted", "anchors", "supervised", "selected")
AT_ONCE, WAITING_TARGETS = 64, 2**21
"""Packs counted at a time, fewer where their targets by context take more than so many numbers."""


def crossed(every_tokens: int | None, before: int, now: int) -> bool:
    """Return whether a multiple of `every_tokens` lies between two numbers of consumed tokens.

    Example:
        >>> crossed(100, before=90, now=105), crossed(100, before=105, now=190), crossed(None, before=0, now=500)
        (True, False, False)
    """
    return every_tokens is not None and now // every_tokens > before // every_tokens


class Counting(Callback):
    """Adds each pack's runs on the host, and updates the data module's state with it.

    No synchronization with the device: lengths and targets are counted on the host, those of many packs at a time, as
    a step leaves nothing that counting needs in the processor's caches. Ranks are added up only when `total` is called,
    which every rank must do together; each pack has been counted by `copies` of them.
    """

    def __init__(self, max_len: int, distance: Distance, *, selects: bool = False, copies: int = 1) -> None:
        self.rel_pos = None if distance.is_plain else partial(relative_positions, distance)
        self.before = PositionCounts(max_len, self.rel_pos)  # of all ranks, from the checkpoint
        self.here = PositionCounts(max_len, self.rel_pos)  # of this rank, since
        self.selects, self.copies = selects, copies
        self.selected_before, self.selected_here = np.zeros((2, len(SELECTED)), dtype=np.int64)
        self.waiting: list[tuple[Any, ...]] = []  # what is counted of each pack, without its tensors on the device
        self.at_once = min(AT_ONCE, -(-WAITING_TARGETS // max_len))

    def setup(self, trainer: lightning.Trainer, module: Any, stage: str) -> None:
        """Take the loss weights that the data module has planned."""
        self.before.weights = self.here.weights = trainer.datamodule.weights  # type: ignore[attr-defined]

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take the pack to those that are to be counted."""
        self.waiting.append(tuple(map(batch.get, COUNTED_OF_PACK)))
        trainer.datamodule.consumed(batch)  # type: ignore[attr-defined]
        if len(self.waiting) >= self.at_once:
            self.count_waiting()

    def count_waiting(self) -> None:
        """Count the packs since the last call."""
        plain: list[int] = []
        for lengths, ids, anchors, targets, selected in self.waiting:
            if ids is None and anchors is None:
                plain += lengths
            else:
                self.here.add_runs(lengths, ids, anchors)
            self.here.add_targets(targets)
            if self.selects:
                self.selected_here += selected
        self.here.add_segments(plain)
        self.waiting.clear()

    def total(self) -> PositionCounts:
        """Add up all ranks; a collective call."""
        self.count_waiting()
        parts = [getattr(self.here, name) for name in COUNTED]
        everywhere = PositionCounts(self.here.max_len, self.rel_pos, self.here.weights)
        total = summed_over_ranks(np.concatenate(parts)) // self.copies
        summed = np.split(total, np.cumsum([len(part) for part in parts])[:-1])
        for name, part in zip(COUNTED, summed, strict=True):
            setattr(everywhere, name, part)
        return self.before + everywhere

    def selected(self) -> dict[str, int]:
        """Count the samples of selected sentences trained on so far, if sentences are selected; a collective call."""
        if not self.selects:
            return {}
        self.count_waiting()
        total = self.selected_before + summed_over_ranks(self.selected_here) // self.copies
        return dict(zip(SELECTED, total.tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Save the count of all ranks."""
        return self.total().to_dict() | self.selected()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the count of all ranks."""
        self.before = PositionCounts.from_dict(state_dict)
        self.before.rel_pos, self.before.weights = self.rel_pos, self.here.weights
        self.selected_before = np.array([state_dict.get(name, 0) for name in SELECTED], dtype=np.int64)


def summed_over_ranks(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Add up every rank's values; a collective call."""
    total = torch.from_numpy(values.copy())
    if distributed.is_available() and distributed.is_initialized():
        total = total.to("cuda" if distributed.get_backend() == "nccl" else "cpu")
        distributed.all_reduce(total)
    return total.cpu().numpy()


def relative_positions(distance: Distance, q_pos: npt.NDArray[Any], k_pos: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Compute relative positions by a distance method on numpy arrays."""
    return distance.rel_pos(torch.from_numpy(q_pos), torch.from_numpy(k_pos)).numpy()
