"""Estimate memory, FLOPs, hours and disk space of a run before it runs: lab.fit --dry_run.

Hours take the utilisation of arXiv:2410.18745, A.2, in causal FLOPs: 28 days on 16 A100 for 1T tokens in windows of 2K.
The CUDA context with the libraries' workspaces, and NCCL's buffers, are assumed to take 1 GiB each.
"""

import math
from functools import partial
from typing import Any

import torch

from lab.config import Experiment
from lab.core.errors import ConfigError, LabError
from lab.data.config import DataConfig, Slimpajama
from lab.data.shards import token_dtype
from lab.loading import decoder_of
from lab.model.attention.segments import ContextGroup, Segments
from lab.model.config import PEAK_FLOPS, DecoderConfig
from lab.model.devices import device_for
from lab.model.memory import HELD, KERNEL, Memory, fake_ranks, stand_in, track
from lab.model.sharding import Sharding
from lab.train.environment import checkpoint_bytes, count_checkpoints, counts_bytes, needs_of, room_for_checkpoints

GIB = 2**30
GB = 10**9
PAPER_FLOPS = DecoderConfig(2048, 22, 32, 4, 5632, 128_256, False).flops_per_token_causal(2048) * 1e12
SPARE = 0.05  # of a GPU's memory by its name: the driver keeps 1 to 2%, and some is lost between tensors (unmeasured)
UTILISATION = PAPER_FLOPS / (28 * 86_400 * 16 * PEAK_FLOPS["A100"])
SLIMPAJAMA_TOKENS = 627_000_000_000  # from the name SlimPajama-627B, counted with another tokenizer
RECOMPUTED = 4 / 3  # forward once more: 8 instead of 6 operations per weight and token
NAMES = {
    "parameters": "parameters (float32)",
    "gradients": "gradients (float32)",
    "optimizer": "optimizer (float32)",
    "gathered": "gathered weights and gradients",
    "activations": "activations (unmeasured)",
}


def estimate(experiment: Experiment, memory_gib: str | None = None, utilisation: str | None = None) -> str:
    """Estimate one run's resources and format them, refusing a run that does not fit a GPU of `memory_gib`."""
    limit = number_of("--memory_gib", memory_gib or "inf", math.inf, "> 0; for instance 80")
    used = number_of("--utilisation", utilisation or str(UTILISATION), 1, "> 0 and <= 1; for instance 0.4")
    train = experiment.train
    strategy = train.resolved_strategy(train.accelerator != "cpu")
    memory = memory_of(experiment)
    assumed = GIB + GIB * (train.world_size > 1)
    refuse_too_large(memory, assumed, limit)
    words = [f"{train.world_size} x {strategy}", train.precision, f"window {experiment.data.window:,}"]
    words.append(f"packs of {train.micro_batch_tokens:,} tokens")
    if train.context_parallel > 1:
        words.append(f"each shared by {train.context_parallel}")
    if train.recompute:
        words.append("recompute")
    rows = [(NAMES[kind], memory.held.get(kind), size) for kind, size in memory.peak.items()]
    rows += [("CUDA and NCCL (assumed)", None, assumed), ("in all", None, memory.total + assumed)]
    # each process gathers the whole weights for a probe, when training holds no activations
    if strategy == "fsdp" and experiment.probe is not None:
        copied = experiment.model.n_parameters() * (2 if train.bf16 else 4)
        rows.append(("weights of a probe (apart)", copied, copied))
    lines = [
        f"{experiment.run.name}: {', '.join(words)}",
        "",
        f"{'memory of each GPU':32}{'held, bytes':>18}{'peak, GiB':>12}",
    ]
    lines += [f"  {name:30}{'-' if held is None else f'{held:,}':>18}{size / GIB:>12.2f}" for name, held, size in rows]
    work = work_of(experiment, used)
    return "\n".join([*lines, "", *(f"{name:20}{value}" for name, value in work.items())])


def number_of(name: str, text: str, most: float, rule: str) -> float:
    """Read the number of an option, which must be above 0, and `most` at most."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise ConfigError(f"{name}={text}: must be a number {rule}")
    return value


def needed_here(experiment: Experiment) -> str:
    """List what a run needs on this machine: each here, or missing, and how it comes."""
    train = experiment.train
    checks = dict(needs_of(experiment))
    if train.accelerator == "gpu":
        checks["GPU"] = partial(device_for, "gpu", "train.accelerator")
    lines = []
    for name, check in checks.items():
        try:
            check()
            lines.append(f"{name:20}here")
        except LabError as error:
            lines.append(f"{name:20}missing: {error}")
    return "\n".join(lines)


def memory_of(experiment: Experiment) -> Memory:
    """Measure the memory of each process of a run after its first optimizer step."""
    train = experiment.train
    strategy = train.resolved_strategy(train.accelerator != "cpu")
    packs = min(train.accumulation, 2)  # further ones change nothing
    sharding = None
    if strategy == "fsdp":
        whole = train.keeps_whole(experiment.model.n_parameters())
        sharding = Sharding(torch.bfloat16 if train.bf16 else None, train.sharded_over, whole)
    build = decoder_of(experiment, backend=KERNEL, recompute=train.recompute)
    keeps = strategy == "ddp" or packs > 1  # DDP's buckets are the gradients and always there
    with fake_ranks(train.world_size):
        inputs = {**inputs_of(experiment), "context": ContextGroup.of(train.context_parallel)}
        options: dict[str, Any] = {"keeps_gradients": keeps, "packs": packs, "optim": experiment.optim}
        return track(lambda: stand_in(build(None)), inputs, sharding=sharding, bf16=train.bf16, **options)


def inputs_of(experiment: Experiment) -> dict[str, Any]:
    """Build the decoder's inputs in a training step for a pack of full windows; under anchors, halves of windows."""
    window = experiment.data.window
    tokens = experiment.train.micro_batch_tokens
    whole, rest = divmod(tokens, window)
    lengths = [window] * whole + [rest] * (rest > 0)
    anchors = None
    if experiment.position.distance.method != "plain":
        lengths = lengths[:1]  # tiles run one by one and free their memory; tokens after it are padding
    if experiment.mask.is_anchored:
        lengths = [part for length in lengths for part in (length - length // 2, length // 2) if part]
        anchors = tuple(-1 if n % 2 == 0 else sum(lengths[: n - 1]) for n in range(len(lengths)))
    segments = Segments.from_lengths(lengths, tokens, anchors=anchors)
    for name in ("doc_ids", "position_ids", "spans", *(("key_places",) if anchors else ())):
        getattr(segments, name)  # is cached: fake tensors cannot have shapes that depend on data
    has_ids = experiment.skip or experiment.mask.method != "causal"
    return {
        "tokens": torch.zeros(1, tokens, dtype=torch.int64),
        "targets": torch.zeros(1, tokens, dtype=torch.int64),
        "position_ids": torch.arange(tokens) if has_ids else None,
        "segments": segments,
        "starts": None if experiment.skip else (0,) * len(lengths),
    }


def refuse_too_large(memory: Memory, assumed: int, memory_gib: float) -> None:
    """Refuse a run that does not fit, or only into what the driver and fragments take of a GPU."""
    needed = (memory.total + assumed) / (1 - SPARE)
    if needed > memory_gib * GIB:
        held = sum(memory.peak[kind] for kind in HELD)
        raise ConfigError(
            f"--memory_gib={memory_gib:g}: must be >= {needed / GIB:.2f}, the peak of each GPU and {SPARE:.0%} to "
            f"spare, with {memory.peak['activations'] / GIB:.2f} of activations and {held / GIB:.2f} of parameters, "
            "gradients and optimizer; set train.recompute=true or train.strategy=fsdp, raise train.context_parallel, "
            "lower train.micro_batch_tokens, or take more or larger GPUs"
        )


def work_of(experiment: Experiment, utilisation: float) -> dict[str, str]:
    """Format operations, hours and bytes on disk."""
    model = experiment.model
    train = experiment.train
    window = experiment.data.window
    causal, full = model.flops_per_token_causal(window), model.flops_per_token_full(window)
    checkpoint, room = checkpoint_bytes(experiment), room_for_checkpoints(experiment)
    shards = shard_tokens(experiment.data, train.steps * train.batch_tokens) * int(token_dtype(model.vocab_size)[-1])
    hours = dict.fromkeys(("wall hours", "GPU-hours"), "unknown (the peak of float32 is not in the table)")
    if train.bf16:
        wall = {gpu: hours_of(experiment, gpu, utilisation) for gpu in PEAK_FLOPS}
        for name, processes in (("wall hours", 1), ("GPU-hours", train.world_size)):
            hours[name] = ", ".join(f"{value * processes:,.1f} on {gpu}" for gpu, value in wall.items())
        of_whom = "arXiv:2410.18745, A.2" if utilisation == UTILISATION else "as given"
        both = f"{utilisation:.2f} (mfu; mfu_full {utilisation * full / causal:.2f})"
        hours["wall hours"] += f", {train.world_size} of them at utilisation {both}, {of_whom}"
    return {
        "parameters": f"{model.n_parameters():,}",
        "FLOPs per token": f"{causal:,} (full causal windows, mfu), {full:,} (with hidden pairs, mfu_full)",
        "steps": f"{train.steps:,} of {train.batch_tokens:,} tokens, {train.steps * train.batch_tokens:,} in all",
        "micro-batches": f"{train.accumulation} of {train.micro_batch_tokens:,} tokens on each process",
        **hours,
        "checkpoint": f"{checkpoint / GB:,.2f} GB (weights and moments)",
        "all checkpoints": f"{room / GB:,.2f} GB ({count_checkpoints(train)}, with the one being written)",
        "shards": f"{shards / GB:,.2f} GB (SlimPajama by its name, any other by train.tokens)",
        "counts.npz": f"{counts_bytes(experiment):,} bytes",
    }


def hours_of(experiment: Experiment, gpu: str, utilisation: float = UTILISATION) -> float:
    """Compute the wall hours of a run on GPUs of a kind, in bfloat16."""
    train = experiment.train
    flops = experiment.model.flops_per_token_causal(experiment.data.window) * train.steps * train.batch_tokens
    work = flops * (RECOMPUTED if train.recompute else 1)
    return work / (PEAK_FLOPS[gpu] * utilisation * train.world_size) / 3600


def shard_tokens(data: DataConfig, trained: int) -> int:
    """Estimate the tokens in the shards: all of SlimPajama, with those derived, or of another those trained on."""
    drawn = data.upsample.tokens if data.upsample is not None else None
    if not isinstance(data.corpus, Slimpajama) or data.corpus.path is not None:
        return drawn or trained
    return SLIMPAJAMA_TOKENS + (0 if data.base is None else drawn or SLIMPAJAMA_TOKENS)
