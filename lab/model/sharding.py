"""Build a decoder, unsharded on the CPU or sharded over processes (FSDP2); only the first builds a full copy.

A sharded one is built on the meta device, sharded, allocated shard by shard in each process, and filled from the
first process's weights, one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from lab.errors import LabError
from lab.model.decoder import Decoder

Make = Callable[[int | None], Decoder]
Start = Callable[[Decoder], None]


def build(make: Make, seed: int, start: Start | None, *, mesh: Any = None, dtype: torch.dtype | None = None) -> Decoder:
    """Build the decoder with seeded weights, or those that `start` loads; on a mesh, sharded, computing in `dtype`.

    Whatever the default device, the CPU's generator draws the weights, so that they are the same everywhere. Only the
    first process reads weights to start from: DDP and FSDP broadcast them.

    Raises: LabError of `start`, in every process.
    """
    first = not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
    with torch.device("cpu"):
        whole = make(seed) if first or mesh is None else None
        begin(whole if first else None, start)
    if mesh is None:
        assert whole is not None, "built above"
        return whole
    with torch.device("meta"):
        decoder = make(None)
    shard(decoder, mesh, dtype)
    decoder.to_empty(device=mesh.device_type)
    weights: dict[str, Any] = {} if whole is None else dict(whole.state_dict())
    set_model_state_dict(decoder, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return decoder


def begin(decoder: Decoder | None, start: Start | None) -> None:
    """Load the weights to start from in the first process, or raise its error in every process."""
    faults: list[LabError | None] = [None]
    try:
        if decoder is not None and start is not None:
            start(decoder)
    except LabError as error:
        faults = [error]
    if distributed.is_available() and distributed.is_initialized():
        distributed.broadcast_object_list(faults, src=0)
    if faults[0] is not None:
        raise faults[0]


def shard(decoder: Decoder, mesh: Any, dtype: torch.dtype | None) -> None:
    """Shard every block, and the rest of the decoder, over the mesh.

    Inputs keep their dtype: hidden states already have that of the embedding, and rotary tables must stay in float32.
    """
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in decoder.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(decoder, mesh=mesh, mp_policy=policy)


def reshard(decoder: Decoder) -> None:
    """Reshard the parameters that a forward pass without gradients leaves gathered."""
    for module in decoder.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
