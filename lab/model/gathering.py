"""Copy a sharded decoder's weights into one that is whole in every process, for passes without gradients.

Each parameter is gathered once, in the dtype that the sharded model computes in; the forward passes that follow gather
nothing, so that processes need not make the same ones. The sharded model is only read.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from lab.model.decoder import Decoder
from lab.model.sharding import Make


def allocate(make: Make, dtype: torch.dtype | None, device: torch.device) -> Decoder:
    """Allocate a whole decoder without filling it, in `dtype` or as it is made.

    Raises: RuntimeError where the device has no room for it.
    """
    with torch.device("meta"):
        decoder = make(None).to(dtype)
    decoder.to_empty(device=device).requires_grad_(False)
    if decoder.cfg.tie_embeddings:
        decoder.head.weight = decoder.embedding.weight  # to_empty allocates each name
    return decoder


@torch.no_grad()
def fill(whole: Decoder, sharded: Decoder) -> None:
    """Gather every parameter of a sharded decoder into a whole one; a collective call."""
    for (name, own), (shard_name, shard) in zip(whole.named_parameters(), sharded.named_parameters(), strict=True):
        assert name == shard_name, f"{name} and {shard_name} differ"
        part = shard.to(own.dtype)
        own.copy_(part.full_tensor() if isinstance(part, DTensor) else part)
