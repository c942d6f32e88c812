"""Peak memory of one process of a run, from the real decoder's forward and backward pass on fake tensors.

Torch's trackers (FSDPMemTracker under FSDP2, MemTracker otherwise) record a micro batch in FakeTensorMode: every
operation runs, shapes and lifetimes are the run's, and no memory is allocated. FSDP2 shards over a fake process group.
The tensors are on the CPU, because FSDP2 creates CUDA streams on a CUDA mesh and builds of torch without CUDA abort in
a backward pass of fake CUDA tensors; lab/estimate/stand_ins.py replaces modules whose CUDA kernels keep other tensors.
The caching allocator's rounding and fragmentation are not included.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from lab.config import Experiment
from lab.estimate.stand_ins import gpu_decoder
from lab.model.attention.context import ContextGroup
from lab.model.attention.segments import Segments
from lab.model.decoder import Decoder
from lab.model.sharding import Sharding, accumulating, arranged, shard

KINDS = {  # our kinds of memory, each with the trackers' names for it
    "parameters": ("Parameter", "Sharded Param"),
    "gradients": ("Gradient", "Sharded Grad"),
    "optimizer": ("Optstate", "OptState"),
    "gathered": ("Unsharded Param", "All Gather", "Unsharded Grad", "Reduce Scatter"),
    "activations": ("Activation", "Temp", "Buffer", "Inputs", "Other"),
}
HELD = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True)
class Memory:
    """Bytes of one process.

    `held` is all that a step needs apart from activations, by kind, `kept` what the forward pass keeps for the backward
    pass, and `peak` the maximum over both passes, by kind.
    """

    held: dict[str, int]
    kept: int
    peak: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return sum(self.peak.values())


def memory_of(experiment: Experiment) -> Memory:
    """Measure the memory of each process of a run after its first optimizer step.

    Raises: LabError for methods that cannot be built.
    """
    model, train = experiment.model, experiment.train
    decoder = gpu_decoder(
        model,
        frequencies=experiment.frequencies,
        distance=experiment.position.distance,
        recompute=train.recompute,
    )
    on_gpu = train.accelerator != "cpu"
    strategy, bf16 = train.resolved_strategy(on_gpu), train.computes_in_bf16(on_gpu)
    is_sharded, inputs = strategy == "fsdp", inputs_of(experiment)
    whole = is_sharded and train.keeps_whole(model.n_parameters(), bf16=bf16)
    sharding = Sharding(torch.bfloat16 if bf16 else None, train.sharded_over, whole) if is_sharded else None
    packs = min(train.accumulation, 2)  # further ones change nothing
    keeps = strategy == "ddp" or packs > 1  # DDP's buckets are the gradients and always there
    ranks = train.world_size if is_sharded or train.context_parallel > 1 else 0
    with mesh_of(ranks, train.sharded_over) as mesh:
        inputs["context"] = ContextGroup.of(train.context_parallel)
        return track(decoder, inputs, mesh=mesh, sharding=sharding, bf16=bf16, keeps_gradients=keeps, packs=packs)


@contextmanager
def mesh_of(world_size: int, degree: int) -> Iterator[DeviceMesh | None]:
    """Open a mesh of `world_size` fake ranks, of which only the first exists, sharded by `degree`; None for 0."""
    if not world_size:
        yield None
        return
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield arranged(init_device_mesh("cpu", (world_size,)), degree)
    finally:
        distributed.destroy_process_group()


def inputs_of(experiment: Experiment) -> dict[str, Any]:
    """Build the decoder's inputs in a training step for a pack of full windows; under anchors, halves of windows.

    Values derived from the lengths are computed on real tensors: fake tensors cannot have data-dependent shapes.
    """
    window, tokens = experiment.data.window, experiment.train.micro_batch_tokens
    whole, rest = divmod(tokens, window)
    lengths, anchors = [window] * whole + [rest] * (rest > 0), None
    if experiment.position.distance.method != "plain":
        lengths = lengths[:1]  # tiles run one by one and free their memory; tokens after it are padding
    if experiment.mask.method == "anchor":
        lengths = [part for length in lengths for part in (length - length // 2, length // 2) if part]
        anchors = tuple(-1 if n % 2 == 0 else sum(lengths[: n - 1]) for n in range(len(lengths)))
    segments = Segments.from_lengths(lengths, tokens, anchors=anchors)
    prepare(segments)
    given = experiment.has_gaps or experiment.mask.method != "causal"
    starts = None if experiment.has_gaps else (0,) * len(lengths)
    return {
        "tokens": torch.zeros(1, tokens, dtype=torch.int64),
        "targets": torch.zeros(1, tokens, dtype=torch.int64),
        "position_ids": torch.arange(tokens) if given else None,
        "segments": segments,
        "starts": starts,
    }


def prepare(segments: Segments) -> None:
    """Compute the cached properties of segments on real tensors."""
    for name in ("doc_ids", "position_ids", "spans", *(("key_places",) if segments.anchors else ())):
        getattr(segments, name)


def track(
    decoder: Decoder,
    inputs: dict[str, Any],
    *,
    mesh: DeviceMesh | None = None,
    sharding: Sharding | None = None,
    bf16: bool,
    keeps_gradients: bool,
    packs: int = 1,
) -> Memory:
    """Run the micro-batches of a step of a decoder on the meta device under a tracker."""
    whole = sharding is not None and sharding.whole and packs > 1
    widened = 4 * sum(p.numel() for p in decoder.parameters()) if whole and bf16 else 0  # gradients, no kind of torch's
    with FakeTensorMode(allow_non_fake_inputs=True):
        place(decoder)
        if sharding is not None:
            assert mesh is not None, "of all ranks"
            shard(decoder, mesh, sharding)
        optimizer = torch.optim.AdamW(decoder.parameters(), fused=True)
        for parameter in decoder.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        if not keeps_gradients or whole:
            optimizer.zero_grad()
        tracker: MemTracker = MemTracker() if sharding is None else FSDPMemTracker(decoder, optimizer)
        if sharding is None:
            tracker.track_external(decoder, optimizer)
        arguments = {name: x.clone() if isinstance(x, Tensor) else x for name, x in inputs.items()}
        autocast = torch.autocast("cpu", dtype=torch.bfloat16) if bf16 and sharding is None else nullcontext()
        with tracker:
            if whole:
                with accumulating(decoder):
                    decoder(**arguments).backward()
                tracker.reset_mod_stats()  # of each module, which it can record once; the peak stays
            with autocast:
                loss = decoder(**arguments)
            forward = by_kind(tracker.get_tracker_snapshot("current"))
            loss.backward()
        held, peak = (by_kind(tracker.get_tracker_snapshot(moment)) for moment in ("current", "peak"))
        peak |= {"gathered": peak["gathered"] + widened, "activations": peak["activations"] - widened}
        return Memory({kind: held[kind] for kind in HELD}, forward["activations"] - widened, peak)


def place(decoder: nn.Module) -> None:
    """Replace parameters on the meta device by fake ones; tied ones stay tied."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in decoder.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in made:
                made[parameter] = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype))
            setattr(module, name, made[parameter])


def by_kind(snapshot: dict[torch.device, dict[Any, int]]) -> dict[str, int]:
    """Sum a tracker's bytes by our kinds."""
    (found,) = snapshot.values()
    named = {getattr(kind, "value", kind): size for kind, size in found.items()}
    total = named.pop("Total")
    kinds = {kind: sum(named.pop(name, 0) for name in names) for kind, names in KINDS.items()}
    assert sum(kinds.values()) == total, f"the tracker has kinds that are not in KINDS: {named}"
    return kinds
