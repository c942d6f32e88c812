"""Estimate memory, FLOPs, hours and disk space of a run before it runs: lab.fit --dry_run.

Hours take the utilisation of arXiv:2410.18745, A.2, in causal FLOPs: 28 days on 16 A100 for 1T tokens in windows of 2K.
The CUDA context with the libraries' workspaces, and NCCL's buffers, are assumed to take 1 GiB each.
"""

import math
from functools import partial

from lab.config import Experiment
from lab.core.errors import ConfigError, LabError
from lab.data.config import DataConfig, Slimpajama
from lab.data.shards import token_dtype
from lab.model.config import DecoderConfig
from lab.model.devices import PEAK_FLOPS, device_for
from lab.train.environment import (
    checkpoint_bytes,
    count_checkpoints,
    counts_bytes,
    list_requirements,
    room_for_checkpoints,
)
from lab.train.memory import Memory, measure_memory

GIB = 2**30
GB = 10**9
SPARE = 0.05  # of a GPU's memory by its name: the driver keeps 1 to 2%, and some is lost between tensors (unmeasured)
UTILISATION = (  # of the paper's 1T tokens in 28 days on 16 GPUs
    DecoderConfig(2048, 22, 32, 4, 5632, 128_256, False).flops_per_token_causal(2048) * 1e12
) / (28 * 86_400 * 16 * PEAK_FLOPS["A100"])
SLIMPAJAMA_TOKENS = 627_000_000_000  # from the name SlimPajama-627B, counted with another tokenizer


def estimate(experiment: Experiment, memory_gib: str | None = None, utilisation: str | None = None) -> str:
    """Estimate one run's resources and format them, rejecting a run that does not fit a GPU of `memory_gib`."""
    limit = parse_number("--memory_gib", memory_gib or "inf", math.inf, "> 0; for instance 80")
    used = parse_number("--utilisation", utilisation or str(UTILISATION), 1, "> 0 and <= 1; for instance 0.4")
    train = experiment.train
    strategy = train.resolved_strategy(train.accelerator != "cpu")
    memory = measure_memory(experiment)
    assumed = GIB if train.world_size == 1 else 2 * GIB
    refuse_too_large(memory, assumed, limit)
    parts = [
        f"{train.world_size} x {strategy}",
        train.precision,
        f"window {experiment.data.window:,}",
        f"packs of {train.micro_batch_tokens:,} tokens",
    ]
    if train.context_parallel > 1:
        parts.append(f"each shared by {train.context_parallel}")
    if train.recompute:
        parts.append("recompute")
    lines = [f"{experiment.run.name}: {', '.join(parts)}", "", f"{'memory of each GPU':32}{'peak, GiB':>12}"]
    notes = {"gathered": "weights and gradients", "activations": "(unmeasured)"}
    rows = {f"{name} {notes.get(name, '(float32)')}": size for name, size in memory.peak.items()}
    rows |= {"CUDA and NCCL (assumed)": assumed, "in all": memory.total + assumed}
    # Each process gathers the whole weights for a probe, when training holds no activations: not part of the total.
    if strategy == "fsdp" and experiment.probe is not None:
        rows["weights of a probe (apart)"] = experiment.model.n_parameters() * (2 if train.bf16 else 4)
    lines += [f"  {name:30}{size / GIB:>12.2f}" for name, size in rows.items()]
    return "\n".join([*lines, "", *(f"{name:20}{value}" for name, value in describe_work(experiment, used).items())])


def parse_number(name: str, text: str, most: float, rule: str) -> float:
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
    checks = list_requirements(experiment)
    if experiment.train.accelerator == "gpu":
        checks["GPU"] = partial(device_for, "gpu", "train.accelerator")
    lines = []
    for name, check in checks.items():
        try:
            check()
            lines.append(f"{name:20}here")
        except LabError as error:
            if name == "shards" and isinstance(error, ConfigError):  # no machine has what the settings exclude
                raise
            lines.append(f"{name:20}missing: {error}")
    return "\n".join(lines)


def refuse_too_large(memory: Memory, assumed: int, memory_gib: float) -> None:
    """Reject a run that does not fit, or only into what the driver and fragments take of a GPU."""
    needed = (memory.total + assumed) / (1 - SPARE)
    if needed > memory_gib * GIB:
        held = memory.total - memory.peak["gathered"] - memory.peak["activations"]
        raise ConfigError(
            f"--memory_gib={memory_gib:g}: must be >= {needed / GIB:.2f}, the peak of each GPU and {SPARE:.0%} to "
            f"spare, with {memory.peak['activations'] / GIB:.2f} of activations and {held / GIB:.2f} of parameters, "
            "gradients and optimizer; set train.recompute=true or train.strategy=fsdp, raise train.context_parallel, "
            "lower train.micro_batch_tokens, or take more or larger GPUs"
        )


def describe_work(experiment: Experiment, utilisation: float) -> dict[str, str]:
    """Format operations, hours and bytes on disk."""
    model = experiment.model
    train = experiment.train
    window = experiment.data.window
    causal, full = model.flops_per_token_causal(window), model.flops_per_token_full(window)
    checkpoint, room = checkpoint_bytes(experiment), room_for_checkpoints(experiment)
    tokens = train.steps * train.batch_tokens
    # the last character of "<u2", numpy's name of the type
    shards = shard_tokens(experiment.data, tokens) * int(token_dtype(model.vocab_size)[-1])
    wall_hours = "unknown (the peak of float32 is not in the table)"
    if train.bf16:
        walls = [f"{estimate_hours(experiment, gpu, utilisation):,.1f} on {gpu}" for gpu in PEAK_FLOPS]
        source = "arXiv:2410.18745, A.2" if utilisation == UTILISATION else "as given"
        wall_hours = (
            f"{', '.join(walls)}, {train.world_size} of them at utilisation {utilisation:.2f} (mfu; mfu_full "
            f"{utilisation * full / causal:.2f}), {source}"
        )
    return {
        "parameters": f"{model.n_parameters():,}",
        "FLOPs per token": f"{causal:,} (full causal windows, mfu), {full:,} (with hidden pairs, mfu_full)",
        "steps": f"{train.steps:,} of {train.batch_tokens:,} tokens, {tokens:,} in all",
        "micro-batches": f"{train.accumulation} of {train.micro_batch_tokens:,} tokens on each process",
        "wall hours": wall_hours,
        "checkpoint": f"{checkpoint / GB:,.2f} GB (weights and moments)",
        "all checkpoints": f"{room / GB:,.2f} GB ({count_checkpoints(experiment)}, with the one being written)",
        "shards": f"{shards / GB:,.2f} GB (SlimPajama by its name, any other by train.tokens)",
        "counts.npz": f"{counts_bytes(experiment):,} bytes",
    }


def estimate_hours(experiment: Experiment, gpu: str, utilisation: float = UTILISATION) -> float:
    """Compute the wall hours of a run on GPUs of a model, in bfloat16."""
    train = experiment.train
    flops: float = experiment.model.flops_per_token_causal(experiment.data.window) * train.steps * train.batch_tokens
    if train.recompute:
        flops *= 4 / 3  # a second forward pass: 8 instead of 6 operations per weight and token
    return flops / (PEAK_FLOPS[gpu] * utilisation * train.world_size) / 3600


def shard_tokens(data: DataConfig, trained: int) -> int:
    """Estimate the tokens in the shards: all of SlimPajama, with those derived, or of another those trained on."""
    upsampled = None if data.upsample is None else data.upsample.tokens
    if not isinstance(data.corpus, Slimpajama) or data.corpus.path is not None:
        return upsampled or trained
    if data.base is None:
        return SLIMPAJAMA_TOKENS
    return SLIMPAJAMA_TOKENS + (upsampled or SLIMPAJAMA_TOKENS)
