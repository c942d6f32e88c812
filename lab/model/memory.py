"""Peak memory of one process in a training step, from the real decoder's forward and backward pass on fake tensors.

Torch's trackers (FSDPMemTracker under FSDP2, MemTracker otherwise) record a micro batch in FakeTensorMode. Every
operation runs, shapes and lifetimes are the run's, and no memory is allocated. FSDP2 shards over a fake process group.
The tensors are on the CPU. FSDP2 creates CUDA streams on a CUDA mesh, and builds of torch without CUDA abort in a
backward pass of fake CUDA tensors. The caching allocator's rounding and fragmentation are not included.

Modules whose CUDA kernels keep other tensors for the backward pass are replaced. Attention uses the variable-length
flash kernel, which keeps q, k, v, its output and the log-sum-exp of each row, but no logits. Workspaces inside kernels
are not included. The largest is the float32 gradient of q in flash attention's backward pass. It exists after a block's
feed-forward activations are freed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from lab.model.attention.attend import KERNELS
from lab.model.attention.backends import runs_in_one_call
from lab.model.attention.kernels import CAUSAL_KERNELS
from lab.model.attention.layout import KeyCache, Layout
from lab.model.block import Attention
from lab.model.config import OptimConfig
from lab.model.decoder import Decoder, Head, make_optimizer
from lab.model.devices import compute_dtype
from lab.model.loss import ChunkedCrossEntropy, chunk_tokens
from lab.model.sharding import Sharding, accumulating, arrange_mesh, shard

KERNEL = "varlen"  # flash-attn's kernel returns and keeps tensors of the same sizes
CATEGORIES = {  # our categories of memory, each with the trackers' names for it
    "parameters": ("Parameter", "Sharded Param"),
    "gradients": ("Gradient", "Sharded Grad"),
    "optimizer": ("Optstate", "OptState"),
    "gathered": ("Unsharded Param", "All Gather", "Unsharded Grad", "Reduce Scatter"),
    "activations": ("Activation", "Temp", "Buffer", "Inputs", "Other"),
}
HELD = ("parameters", "gradients", "optimizer")  # apart from a step's activations


class FlashAttention(Attention):
    """`Attention` by the variable-length kernel on any device."""

    def attend_local(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: KeyCache | None) -> Tensor:
        """Rotate and attend as on a GPU; shapes as in `Attention`."""
        if runs_in_one_call(KERNEL, layout):  # tokens before heads in memory, as `Block.before` leaves them
            rotation = layout.q_rotations[0].tokens_first()
            q, k = (rotation.rotate(x.transpose(1, 2)).to(v.dtype).transpose(1, 2) for x in (q, k))
            return CAUSAL_KERNELS[KERNEL](q, k, v, layout.segments, layout.window)
        keys = [rotation.rotate(k).to(v.dtype) for rotation in layout.k_rotations]
        return KERNELS["cpu_bands"](q, keys, v, layout, self.layer)  # of the same sizes for any head width


class FusedNorm(torch.autograd.Function):
    """The tensors of the fused RMSNorm kernel, without its values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Keep the input and the inverse root mean square of each token in float32."""
        scale = x.new_empty(*x.shape[:-1], 1, dtype=torch.promote_types(x.dtype, torch.float32))
        ctx.save_for_backward(x, weight, scale)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Allocate both gradients."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class FusedRMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` by one kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return FusedNorm.apply(x, self.weight)  # type: ignore[no-untyped-call]


class FusedCrossEntropy(torch.autograd.Function):
    """The tensors of the loss with its compiled body and sums inside products, without their values."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        """Allocate both gradients, and a chunk's logits and their gradient."""
        compute = compute_dtype(hidden)
        wide = torch.promote_types(compute, torch.float32)
        head = weight.to(compute)
        ctx.save_for_backward(torch.empty_like(hidden), torch.zeros_like(weight, dtype=wide))
        ctx.dtypes = hidden.dtype, weight.dtype
        logits = head.new_empty(min(chunk_tokens(len(head)), len(hidden)), len(head))
        grad = torch.empty_like(logits)
        return grad.new_zeros((), dtype=wide)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ChunkedCrossEntropy.backward(ctx, grads[0], grads[0])[:2]


class FusedHead(Head):
    """`Head` with the loss as on a GPU."""

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:  # type: ignore[override]
        return FusedCrossEntropy.apply(x.flatten(0, 1), self.weight)  # type: ignore[no-untyped-call]


STAND_INS = {Attention: FlashAttention, nn.RMSNorm: FusedRMSNorm, Head: FusedHead}


def use_stand_ins(decoder: Decoder) -> Decoder:
    for module in decoder.modules():
        # The class alone changes: parameters, their names and FSDP's groups stay those of the decoder.
        module.__class__ = STAND_INS.get(type(module), type(module))
    return decoder


@contextmanager
def fake_ranks(world_size: int) -> Iterator[None]:
    """Open a process group of fake ranks, of which only the first exists."""
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@dataclass(frozen=True)
class Memory:
    """Bytes of one process.

    `kept` are those that the forward pass keeps for the backward pass, and `peak` the maximum over both passes, by
    category.
    """

    kept: int
    peak: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.peak.values())


def track(
    build: Callable[[], Decoder],
    inputs: Mapping[str, Any],
    *,
    sharding: Sharding | None = None,
    bf16: bool,
    keeps_gradients: bool,
    packs: int = 1,
    optim: OptimConfig = OptimConfig(),
) -> Memory:
    """Run the micro-batches of a step of a decoder under a tracker; a sharded one needs a process group."""
    # Between micro-batches `whole` keeps full gradients on every rank, which a single pack has no use for.
    accumulates = sharding is not None and sharding.whole and packs > 1
    mesh = None
    if sharding is not None:
        mesh = arrange_mesh(init_device_mesh("cpu", (distributed.get_world_size(),)), sharding.degree)
    with FakeTensorMode(allow_non_fake_inputs=True):
        decoder = build()
        if sharding is not None and mesh is not None:
            shard(decoder, mesh, sharding)
        # A first step allocates the optimizer's states, so that the step under the tracker is like any later one.
        optimizer = make_optimizer(decoder, optim)
        for parameter in decoder.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        if not keeps_gradients or accumulates:
            optimizer.zero_grad()
        tracker: MemTracker
        if sharding is None:
            tracker = MemTracker()
            tracker.track_external(decoder, optimizer)
        else:
            tracker = FSDPMemTracker(decoder, optimizer)
        # Clones under the mode are fake tensors, which the decoder's own are too.
        arguments = {name: x.clone() if isinstance(x, Tensor) else x for name, x in inputs.items()}
        with tracker:
            if accumulates:
                with accumulating(decoder):
                    decoder(**arguments).backward()
                tracker.reset_mod_stats()  # of each module, which it can record once; the peak stays
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16 and sharding is None):
                loss = decoder(**arguments)
            kept = sum_bytes(tracker, "current")["activations"]
            loss.backward()
        peak = sum_bytes(tracker, "peak")
    if accumulates and bf16:
        # FSDP2 keeps the accumulated gradients in float32, and the tracker calls them activations.
        widened = 4 * decoder.cfg.n_parameters()
        kept -= widened
        peak["activations"] -= widened
        peak["gathered"] += widened
    return Memory(kept, peak)


def sum_bytes(tracker: MemTracker, moment: str) -> dict[str, int]:
    """Sum a tracker's bytes by our categories."""
    (snapshot,) = tracker.get_tracker_snapshot(moment).values()
    named = {getattr(kind, "value", kind): size for kind, size in snapshot.items()}
    sums = {}
    for category, names in CATEGORIES.items():
        sums[category] = sum(named.get(name, 0) for name in names)
    assert sum(sums.values()) == named["Total"], f"the tracker has names that are not in CATEGORIES: {named}"
    return sums
