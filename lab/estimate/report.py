"""The report of a dry run, and the refusal of a run that does not fit."""

from __future__ import annotations

from dataclasses import dataclass

from lab.config import Experiment
from lab.errors import ConfigError
from lab.estimate.cost import Cost
from lab.estimate.memory import HELD, Memory
from lab.train.choices import planned_compile

GIB, GB = 2**30, 10**9
CONTEXT_BYTES, NCCL_BYTES = 1 * GIB, 1 * GIB
"""Assumed, not measured: the CUDA context with the libraries' workspaces, and NCCL's buffers for several processes."""
NAMES = {
    "parameters": "parameters (float32)",
    "gradients": "gradients (float32)",
    "optimizer": "optimizer (AdamW, float32)",
    "gathered": "gathered weights and gradients",
    "activations": "activations (unmeasured)",
}
WIDTH = 32


@dataclass(frozen=True)
class Gpus:
    """The GPUs that a run is planned for; `memory_gib` None means no limit, `peak_flops` None unknown."""

    name: str
    peak_flops: float | None
    memory_gib: float | None
    utilisation: float
    utilisation_source: str


def assumed_bytes(experiment: Experiment) -> int:
    """Return the assumed memory outside tensors."""
    return CONTEXT_BYTES + NCCL_BYTES * (experiment.train.world_size > 1)


def refuse_too_large(experiment: Experiment, memory: Memory, gpus: Gpus) -> None:
    """Refuse a run that does not fit.

    Raises: ConfigError naming the setting with the largest share, the peak, the limit and remedies.
    """
    needed = memory.total + assumed_bytes(experiment)
    if gpus.memory_gib is None or needed <= gpus.memory_gib * GIB:
        return
    train, strategy = experiment.train, strategy_of(experiment)
    held = sum(memory.peak[kind] for kind in HELD)
    by_tokens = memory.peak["activations"] > held
    field = f"train.micro_batch_tokens={train.micro_batch_tokens}" if by_tokens else f"train.strategy={strategy}"
    raise ConfigError(
        f"{field}: must fit --memory_gib={gpus.memory_gib:g}, each GPU needs {needed / GIB:.2f} GiB at its peak, "
        f"{memory.peak['activations'] / GIB:.2f} of it activations and {held / GIB:.2f} parameters, gradients and "
        f"optimizer; {', or '.join(remedies(experiment, by_tokens))}"
    )


def remedies(experiment: Experiment, by_tokens: bool) -> list[str]:
    """List the settings that would lower the peak, the most effective first."""
    train, window = experiment.train, experiment.data.window
    again = ["set train.recompute=true"] * (not train.recompute)
    shards = ["set train.strategy=fsdp"] * (strategy_of(experiment) != "fsdp")
    if by_tokens:
        longer = train.micro_batch_tokens > window
        fewer = f"lower it (data.window={window} at least)" if longer else f"lower it with data.window={window}"
        return [*again, fewer, *shards, "take GPUs with more memory"]
    return [*shards, "raise train.devices or train.nodes", *again, "take GPUs with more memory"]


def strategy_of(experiment: Experiment) -> str:
    """Return the strategy on the GPUs that the run is planned for, or on a CPU where it names that."""
    return experiment.train.resolved_strategy(experiment.train.accelerator != "cpu")


def keeps_whole(experiment: Experiment) -> bool:
    """Return whether weights, and gradients between micro-batches, stay whole until a step ends."""
    train = experiment.train
    bf16 = train.computes_in_bf16(train.accelerator != "cpu")
    return strategy_of(experiment) == "fsdp" and train.keeps_whole(experiment.model.n_parameters(), bf16=bf16)


def report(experiment: Experiment, memory: Memory, cost: Cost, gpus: Gpus) -> str:
    """Format memory, work and bytes on disk."""
    return "\n".join(
        [title(experiment), "", *memory_lines(experiment, memory, gpus), "", *work_lines(experiment, cost, gpus)]
    )


def title(experiment: Experiment) -> str:
    """Format the run's name and the settings that its memory depends on."""
    train = experiment.train
    precision = "bf16" if train.computes_in_bf16(train.accelerator != "cpu") else "fp32"
    words = [f"{train.world_size} x {strategy_of(experiment)}", precision, f"window {experiment.data.window:,}"]
    words += [f"packs of {train.micro_batch_tokens:,} tokens"]
    words += [f"each shared by {train.context_parallel}"] * (train.context_parallel > 1)
    words += ["recompute"] * train.recompute
    return f"{experiment.run.name}: {', '.join(words)}"


def memory_lines(experiment: Experiment, memory: Memory, gpus: Gpus) -> list[str]:
    """Format what each GPU holds."""
    assumed = assumed_bytes(experiment)
    lines = [f"{'memory of each GPU':<{WIDTH}}{'held, bytes':>18}{'peak, GiB':>12}"]
    for kind, size in memory.peak.items():
        held = f"{memory.held[kind]:,}" if kind in memory.held else "-"
        lines.append(f"  {NAMES[kind]:<{WIDTH - 2}}{held:>18}{size / GIB:>12.2f}")
    lines.append(f"  {'CUDA and NCCL (assumed)':<{WIDTH - 2}}{'-':>18}{assumed / GIB:>12.2f}")
    limit = "" if gpus.memory_gib is None else f" of {gpus.memory_gib:g}"
    lines.append(f"  {'in all':<{WIDTH - 2}}{'':>18}{(memory.total + assumed) / GIB:>12.2f}{limit}")
    copied = probe_bytes(experiment)
    if copied:
        lines.append(f"  {'weights of a probe (apart)':<{WIDTH - 2}}{copied:>18,}{copied / GIB:>12.2f}")
    return lines


def probe_bytes(experiment: Experiment) -> int:
    """Count the bytes of the whole weights that each process gathers for a probe of sharded ones."""
    train = experiment.train
    if strategy_of(experiment) != "fsdp":
        return 0
    return experiment.model.n_parameters() * (2 if train.computes_in_bf16(train.accelerator != "cpu") else 4)


def work_lines(experiment: Experiment, cost: Cost, gpus: Gpus) -> list[str]:
    """Format operations, hours and bytes on disk."""
    kept = cost.checkpoint_bytes * cost.kept_checkpoints
    rows = [
        ("parameters", f"{cost.parameters:,}"),
        ("FLOPs per token", f"{cost.flops_per_token:,} (full causal windows)"),
        ("steps", f"{cost.steps:,} of {experiment.train.batch_tokens:,} tokens, {cost.tokens:,} in all"),
        ("micro-batches", accumulation(experiment)),
        ("hours", hours(experiment, cost, gpus)),
        ("compiled blocks", planned_compile(experiment)),
        ("checkpoint", f"{cost.checkpoint_bytes / GB:,.2f} GB (weights and AdamW's moments)"),
        ("checkpoints kept", f"{kept / GB:,.2f} GB ({cost.kept_checkpoints}; one more while it is written)"),
        ("shards", f"{cost.shard_bytes / GB:,.2f} GB (from {cost.shard_source})"),
        ("counts.npz", f"{cost.counts_bytes:,} bytes"),
    ]
    return [f"{name:<{WIDTH - 12}}{value}" for name, value in rows]


def accumulation(experiment: Experiment) -> str:
    """Format the micro-batches of a step, what is exchanged for each, and the limits of batch and processes."""
    train = experiment.train
    most, least = train.n_packs * train.context_parallel, train.data_parallel * train.micro_batch_tokens
    gathered = "weights gathered, " * (strategy_of(experiment) == "fsdp")
    once = strategy_of(experiment) == "ddp" or keeps_whole(experiment)
    often = f"; {gathered}gradients exchanged {'once a step' if once else 'for each'}"
    return (
        f"{train.accumulation} of {train.micro_batch_tokens:,} tokens on each process{often * (train.world_size > 1)}; "
        f"at most {most:,} processes for this batch, at least {least:,} tokens a step for these processes"
    )


def hours(experiment: Experiment, cost: Cost, gpus: Gpus) -> str:
    """Format the hours with their assumptions."""
    if cost.hours is None:
        return "unknown (the peak of float32 is not in the table)"
    again = "; a third more for train.recompute" if experiment.train.recompute else ""
    time = f"{cost.hours:,.1f} ({cost.hours / 24:,.1f} days) on {experiment.train.world_size} x {gpus.name}"
    return f"{time} at utilisation {gpus.utilisation:.2f} ({gpus.utilisation_source}{again})"
