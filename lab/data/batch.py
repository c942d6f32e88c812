"""A batch: one pack as one row of attention, divided into values of the device and of the host.

The device reads tensors of `inputs` alone: a step that copied other host values to the device would wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lab.core.types import IGNORE
from lab.counts import targets_by_context, visible_context
from lab.counts.rows import count_by_distance
from lab.data.packing import Pack
from lab.evidence.methods import in_ids


@dataclass(frozen=True, eq=False, kw_only=True)
class Inputs:
    """The tensors of a batch, which move to the device.

    `position_ids` count from 0 in the padding, and in every run of a pack without ids; None means in all runs.
    `weights` are the targets' loss weights, None if all scored targets weigh the same.

    Shapes: tokens, targets int64 and weights float32 (1, T); cu_seqlens int32 (runs + 1,); position_ids int64 (T,).
    """

    tokens: Tensor
    targets: Tensor
    cu_seqlens: Tensor
    position_ids: Tensor | None = None
    weights: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> Inputs:
        """Apply a function to every tensor."""
        return replace(self, **{name: function(tensor) for name, tensor in vars(self).items() if tensor is not None})


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """A pack to train on: the tensors of the device, and what the host knows of its runs and counts.

    `starts` are the first ids of the runs, empty unless the ids of each run count up by one. `supervised` counts the
    targets that have a loss by visible context, `evidence` the scored targets by evidence distance, and `demand` those
    of them that have a loss, also by distance in ids if these have gaps.
    """

    pack: Pack
    inputs: Inputs
    starts: tuple[int, ...]
    n_targets: int
    """Scored targets."""
    supervised: np.ndarray
    evidence: np.ndarray | None
    demand: np.ndarray | None
    demand_by_ids: np.ndarray | None

    def pin(self) -> Batch:
        """Copy the tensors to pinned memory, from which copies to a GPU are queued."""
        return replace(self, inputs=self.inputs.map(Tensor.pin_memory))

    def to(self, device: torch.device) -> Batch:
        """Move the tensors to a device, without a wait if they are pinned."""
        return replace(self, inputs=self.inputs.map(lambda tensor: tensor.to(device, non_blocking=True)))


def to_batch(pack: Pack) -> Batch:
    """Convert a pack to a training batch."""
    scored = pack.targets != IGNORE
    weighed = scored if pack.weights is None else pack.weights
    # attention computes nothing of the padding, which is behind the last end
    ends = np.cumsum([0, *pack.lengths], dtype=np.int32)
    n_tokens = int(ends[-1])
    from_0 = visible_context((*pack.lengths, len(scored) - n_tokens))
    ids = from_0 if pack.position_ids is None else pack.position_ids
    # runs whose ids count up by one have a constant shift, and attention needs only their first ids
    shifts = (ids - from_0)[:n_tokens]
    firsts = shifts[ends[:-1]]
    starts = ()
    if (shifts == np.repeat(firsts, pack.lengths)).all():
        starts = tuple(firsts.tolist())
    weights = None
    if pack.weights is not None:
        weights = torch.from_numpy(weighed.astype(np.float32))[None]
    evidence = demand = demand_by_ids = None
    if pack.distances is not None:
        evidence = count_by_distance(pack.distances[scored])
        demand = count_by_distance(pack.distances[weighed])
        if pack.position_ids is not None:  # without ids, distances in ids are those in tokens
            demand_by_ids = count_by_distance(in_ids(pack.distances, ids)[weighed])
    return Batch(
        pack=pack,
        inputs=Inputs(
            tokens=torch.from_numpy(pack.tokens)[None],
            targets=torch.from_numpy(pack.targets)[None],
            cu_seqlens=torch.from_numpy(ends),
            position_ids=torch.from_numpy(ids),
            weights=weights,
        ),
        starts=starts,
        n_targets=int(np.count_nonzero(scored)),
        supervised=targets_by_context(pack.lengths, pack.anchors, weighed),
        evidence=evidence,
        demand=demand,
        demand_by_ids=demand_by_ids,
    )
