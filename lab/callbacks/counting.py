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

from lab.counts import PositionCounts
from lab.positions import Distance


def crossed(every_tokens: int | None, before: int, now: int) -> bool:
    """Tell whether a multiple of `every_tokens` lies between two numbers of consumed tokens.

    Example:
        >>> crossed(100, before=90, now=105), crossed(100, before=105, now=190), crossed(None, before=0, now=500)
        (True, False, False)
    """
    return every_tokens is not None and now // every_tokens > before // every_tokens


class Counting(Callback):
    """Adds each pack's runs on the host, and keeps the data module's place in step with it.

    Nothing waits for the device: the lengths never leave the host. Ranks are added up only when `total` is called,
    which every rank must do together.
    """

    def __init__(self, max_len: int, distance: Distance) -> None:
        self.rel_pos = None if distance.is_plain else partial(relative_positions, distance)
        self.before = PositionCounts(max_len, self.rel_pos)  # of all ranks, from the checkpoint
        self.here = PositionCounts(max_len, self.rel_pos)  # of this rank, since

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the pack."""
        self.here.add_runs(batch["lengths"], batch["counted"], batch["anchors"])
        trainer.datamodule.consumed(batch)  # type: ignore[attr-defined]

    def total(self) -> PositionCounts:
        """Add up all ranks; a collective call."""
        both = torch.from_numpy(np.concatenate([self.here.lengths, self.here.gapped]))
        if distributed.is_available() and distributed.is_initialized():
            both = both.to("cuda" if distributed.get_backend() == "nccl" else "cpu")
            distributed.all_reduce(both)
        everywhere = PositionCounts(self.here.max_len, self.rel_pos)
        everywhere.lengths, everywhere.gapped = np.split(both.cpu().numpy(), [len(self.here.lengths)])
        return self.before + everywhere

    def state_dict(self) -> dict[str, Any]:
        """Save the count of all ranks."""
        return self.total().to_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the count of all ranks."""
        self.before = PositionCounts.from_dict(state_dict)
        self.before.rel_pos = self.rel_pos


def relative_positions(distance: Distance, q_pos: npt.NDArray[Any], k_pos: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Ask a distance method for relative positions by numpy arrays."""
    return distance.rel_pos(torch.from_numpy(q_pos), torch.from_numpy(k_pos)).numpy()
