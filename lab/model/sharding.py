"""Building a decoder: whole on the CPU, or sharded over processes (FSDP2) without any but the first building it whole.

A sharded one is built without memory, sharded, given memory for each process's shards, and filled from the first
process's weights, one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from lab.errors import LabError
from lab.model.decoder import Decoder

Make = Callable[[int | None], Decoder]
Start = Callable[[Decoder], None]


def build(make: Make, seed: int, start: Start | None, *, mesh: Any = None, dtype: torch.dtype | None = None) -> Decoder:
    """Build the decoder with seeded weights, or those that `start` gives it; on a mesh, sharded, computing in `dtype`.

    Wherever tensors are made by default: the CPU's generator draws the weights, so that they are the same everywhere.

    Raises: LabError of `start`, in every process.
    """
    if mesh is None:
        return build_whole(make, seed, start)
    with torch.device("meta"):
        decoder = make(None)
    shard(decoder, mesh, dtype)
    decoder.to_empty(device=mesh.device_type)
    weights = first_process_weights(make, seed, start)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(decoder, weights, options=options)
    return decoder


def build_whole(make: Make, seed: int, start: Start | None) -> Decoder:
    """Build the decoder on the CPU."""
    with torch.device("cpu"):
        decoder = make(seed)
        if start is not None:
            start(decoder)
    return decoder


def first_process_weights(make: Make, seed: int, start: Start | None) -> dict[str, Tensor]:
    """Give the whole weights to the first process and nothing to the others, or all of them its error."""
    weights: dict[str, Tensor] = {}
    faults: list[LabError | None] = [None]
    if distributed.get_rank() == 0:
        try:
            weights = dict(build_whole(make, seed, start).state_dict())
        except LabError as error:
            faults = [error]
    distributed.broadcast_object_list(faults, src=0)
    if faults[0] is not None:
        raise faults[0]
    return weights


def shard(decoder: Decoder, mesh: Any, dtype: torch.dtype | None) -> None:
    """Shard every block, and what is outside of them, over the mesh.

    Inputs keep their dtype: hidden states have that of the embedding already, and rotary tables must stay in float32.
    """
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in decoder.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(decoder, mesh=mesh, mp_policy=policy)


def reshard(decoder: Decoder) -> None:
    """Drop what a forward pass without gradients leaves whole, so that parameters are this process's shards again."""
    for module in decoder.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
