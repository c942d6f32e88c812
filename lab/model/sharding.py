"""Build a decoder, unsharded on the CPU or sharded over processes (FSDP2); only the first process builds a full copy.

A sharded one is built and sharded on the meta device. Each process then allocates its shards, which are filled from the
first process's weights, one tensor at a time.

Collectives of a step of A micro-batches, for L blocks and an untied head (tied: L + 1 groups in place of L + 3):

    whole       L + 3 all-gathers             L + 3 reduce-scatters
    otherwise   A (2 L + 3) all-gathers       A (L + 3) reduce-scatters

A sharded decoder can be copied into one that is unsharded in every process, for passes without gradients.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from lab.core.errors import LabError
from lab.core.launch import exchange
from lab.model.decoder import Decoder

Make = Callable[[int | None], Decoder]
LoadWeights = Callable[[Decoder], None]


@dataclass(frozen=True)
class Sharding:
    """How a decoder is sharded over a mesh.

    It computes in `dtype`, or in that of its weights. `degree` consecutive ranks share the weights, which further such
    groups replicate; None means all ranks. With `whole` full weights and gradients stay on every rank until a step's
    last micro-batch; otherwise each block's are freed after each use.
    """

    dtype: torch.dtype | None = None
    degree: int | None = None
    whole: bool = False


def build(
    make: Make, seed: int, load: LoadWeights | None, *, mesh: DeviceMesh | None = None, sharding: Sharding = Sharding()
) -> Decoder:
    """Build the decoder with seeded weights, or those that `load` reads; sharded over a mesh of all ranks, if given.

    Only the first process reads weights to start from: DDP and FSDP broadcast them.

    Raises: LabError of `load`, in every process.
    """
    is_first = not distributed.is_initialized() or distributed.get_rank() == 0
    full: Decoder | None = None
    error: LabError | None = None
    # The CPU's generator samples the weights whatever the default device, so that they are the same everywhere.
    with torch.device("cpu"):
        if is_first or mesh is None:
            full = make(seed)
        if is_first and full is not None and load is not None:
            try:
                load(full)
            except LabError as raised:
                error = raised
        # A collective call: an error that only the first process raised would leave the others waiting for weights.
        error = exchange(error)[0]
        if error is not None:
            raise error
    if mesh is None:
        assert full is not None, "built above"
        return full
    # Sharded before it is allocated: no process but the first ever has more than its own shards in memory.
    with torch.device("meta"):
        decoder = make(None)
    shard(decoder, arrange_mesh(mesh, sharding.degree), sharding)
    decoder.to_empty(device=mesh.device_type)
    weights: dict[str, Any] = {} if full is None else full.state_dict()
    set_model_state_dict(decoder, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return decoder


def shard(decoder: Decoder, mesh: DeviceMesh, sharding: Sharding) -> None:
    """Shard every block, an untied embedding and head, and the rest, each with its own collectives.

    Tied, embedding and head belong to the rest, which stays gathered during both passes.
    """
    # Inputs keep their dtype: hidden states already have the embedding's, and rotary tables must stay in float32.
    policy = MixedPrecisionPolicy(param_dtype=sharding.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    parts = [*decoder.blocks]
    if not decoder.cfg.tie_embeddings:
        parts = [decoder.embedding, *parts, decoder.head]
    for part in parts:
        # The head's backward pass follows its forward pass: freed, it would be gathered again at once.
        is_freed = not sharding.whole and part is not decoder.head
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=is_freed)
    if isinstance(decoder.embedding, FSDPModule):
        decoder.embedding.set_unshard_in_backward(False)  # which needs no weights
    fully_shard(decoder, mesh=mesh, mp_policy=policy)


def arrange_mesh(mesh: DeviceMesh, degree: int | None) -> DeviceMesh:
    """Arrange a mesh of all ranks as replicas x shards. A collective call.

    Example, of 4 ranks at degree 2: weights are shared by ranks 0 1 and 2 3, gradients also averaged over 0 2 and 1 3.
    """
    if degree is None or degree == mesh.size():
        return mesh
    return init_device_mesh(mesh.device_type, (mesh.size() // degree, degree), mesh_dim_names=("replicate", "shard"))


@contextmanager
def accumulating(decoder: Decoder) -> Iterator[None]:
    """Keep full gradients, in float32, and weights after the backward pass of a micro-batch that no step follows."""
    assert isinstance(decoder, FSDPModule), "sharded"
    decoder.set_requires_gradient_sync(False)
    decoder.set_reshard_after_backward(False)
    try:
        yield
    finally:
        decoder.set_requires_gradient_sync(True)
        decoder.set_reshard_after_backward(True)


def reshard(decoder: Decoder) -> None:
    """Reshard the parameters that a forward pass without gradients leaves gathered."""
    for module in decoder.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def allocate(make: Make, dtype: torch.dtype | None, device: torch.device) -> Decoder:
    """Allocate an unsharded decoder without values, in `dtype` or that of `make`.

    Raises: RuntimeError if the device has no room.
    """
    with torch.device("meta"):
        decoder = make(None).to(dtype)
    decoder.to_empty(device=device).requires_grad_(False)
    if decoder.cfg.tie_embeddings:
        decoder.head.weight = decoder.embedding.weight  # to_empty allocated memory for each of the two names
    return decoder


@torch.no_grad()
def fill(unsharded: Decoder, sharded: Decoder) -> None:
    """Gather every parameter of a sharded decoder into an unsharded one. A collective call."""
    shards = dict(sharded.named_parameters())
    for name, parameter in unsharded.named_parameters():
        part = shards[name].to(parameter.dtype)
        if isinstance(part, DTensor):
            part = part.full_tensor()
        parameter.copy_(part)
