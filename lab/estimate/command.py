"""Estimate memory, FLOPs, hours and disk space of a run, or of each training stage of a recipe, before it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lab.command import Words, run
from lab.config import Experiment
from lab.counts import PositionCounts
from lab.data.config import DataConfig, Slimpajama
from lab.data.shards import token_dtype
from lab.errors import ConfigError
from lab.estimate.memory import HELD, Memory, memory_of
from lab.estimate.planned import DryRun, architecture_of, separate, tokenizer_of
from lab.model.config import PEAK_FLOPS, DecoderConfig
from lab.recipes import SYNTAX, Recipe, read_recipe, resolve_training
from lab.schema import part
from lab.shape.config import Weights
from lab.source import Source, read_source
from lab.train.folder import packed_counts

GIB, GB = 2**30, 10**9
CONTEXT_BYTES, NCCL_BYTES = 1 * GIB, 1 * GIB
"""Assumed, not measured: the CUDA context with the libraries' workspaces, and NCCL's buffers for several processes."""
PAPER_TOKENS, PAPER_GPUS, PAPER_DAYS = 1e12, 16, 28
"""arXiv:2410.18745, A.2: 2K windows, 1T tokens, 16 A100, 28 days."""
PAPER_MODEL, PAPER_WINDOW = (2048, 22, 32, 4, 5632, 128_256, False), 2048
SECONDS_PER_HOUR, SECONDS_PER_DAY = 3600, 86_400
SLIMPAJAMA_TOKENS = 627_000_000_000  # from its name, counted with another tokenizer
STATE_BYTES, INT64 = 12, 8  # of a parameter: the weight and AdamW's two moments, float32 each
RECOMPUTED = 4 / 3  # forward once more: 8 instead of 6 operations per weight and token
WIDTH = 32
NAMES = {
    "parameters": "parameters (float32)",
    "gradients": "gradients (float32)",
    "optimizer": "optimizer (AdamW, float32)",
    "gathered": "gathered weights and gradients",
    "activations": "activations (unmeasured)",
}


def estimate(experiment: Experiment, options: DryRun) -> str:
    """Estimate one run's resources and format them.

    Raises: ConfigError for a run that does not fit.
    """
    memory, train = memory_of(experiment), experiment.train
    refuse_too_large(experiment, memory, options.memory_gib)
    on_gpu = train.accelerator != "cpu"
    bf16, strategy = train.computes_in_bf16(on_gpu), train.resolved_strategy(on_gpu)
    shared = [f"each shared by {train.context_parallel}"] * (train.context_parallel > 1)
    words = [f"{train.world_size} x {strategy}", "bf16" if bf16 else "fp32", f"window {experiment.data.window:,}"]
    words += [f"packs of {train.micro_batch_tokens:,} tokens", *shared, *["recompute"] * train.recompute]
    lines = [f"{experiment.run.name}: {', '.join(words)}", "", *memory_lines(experiment, memory, options.memory_gib)]
    if strategy == "fsdp":  # of which each process gathers the whole weights for a probe
        copied = experiment.model.n_parameters() * (2 if bf16 else 4)
        lines.append(f"  {'weights of a probe (apart)':<{WIDTH - 2}}{copied:>18,}{copied / GIB:>12.2f}")
    return "\n".join([*lines, "", *work_lines(experiment, bf16=bf16)])


def assumed_bytes(experiment: Experiment) -> int:
    """Return the assumed memory outside tensors."""
    return CONTEXT_BYTES + NCCL_BYTES * (experiment.train.world_size > 1)


def refuse_too_large(experiment: Experiment, memory: Memory, memory_gib: float | None) -> None:
    """Refuse a run that does not fit.

    Raises: ConfigError naming the setting with the largest share, the peak, the limit and remedies.
    """
    needed = memory.total + assumed_bytes(experiment)
    if memory_gib is None or needed <= memory_gib * GIB:
        return
    train, window = experiment.train, experiment.data.window
    strategy = train.resolved_strategy(train.accelerator != "cpu")
    held, activations = sum(memory.peak[kind] for kind in HELD), memory.peak["activations"]
    again = ["set train.recompute=true"] * (not train.recompute)
    remedies = ["set train.strategy=fsdp"] * (strategy != "fsdp")
    if activations > held:
        field = f"train.micro_batch_tokens={train.micro_batch_tokens}"
        remedies = [*again, f"lower it (data.window={window} at least)", *remedies]
    else:
        field = f"train.strategy={strategy}"
        remedies = [*remedies, "raise train.devices or train.nodes", *again]
    raise ConfigError(
        f"{field}: must fit --memory_gib={memory_gib:g}, each GPU needs {needed / GIB:.2f} GiB at its peak, "
        f"{activations / GIB:.2f} of it activations and {held / GIB:.2f} parameters, gradients and optimizer; "
        f"{', or '.join([*remedies, 'take GPUs with more memory'])}"
    )


def memory_lines(experiment: Experiment, memory: Memory, memory_gib: float | None) -> list[str]:
    """Format what each GPU holds."""
    lines = [f"{'memory of each GPU':<{WIDTH}}{'held, bytes':>18}{'peak, GiB':>12}"]
    for kind, size in memory.peak.items():
        held = f"{memory.held[kind]:,}" if kind in memory.held else "-"
        lines.append(f"  {NAMES[kind]:<{WIDTH - 2}}{held:>18}{size / GIB:>12.2f}")
    assumed = assumed_bytes(experiment)
    lines.append(f"  {'CUDA and NCCL (assumed)':<{WIDTH - 2}}{'-':>18}{assumed / GIB:>12.2f}")
    limit = "" if memory_gib is None else f" of {memory_gib:g}"
    return [*lines, f"  {'in all':<{WIDTH - 2}}{'':>18}{(memory.total + assumed) / GIB:>12.2f}{limit}"]


def work_lines(experiment: Experiment, *, bf16: bool) -> list[str]:
    """Format operations, hours and bytes on disk."""
    model, train = experiment.model, experiment.train
    flops, checkpoint = model.flops_per_token_causal(experiment.data.window), checkpoint_bytes(experiment)
    kept = max(train.keep_checkpoints, len(train.final_steps))
    tokens, source = shard_tokens_of(experiment.data, train.steps * train.batch_tokens)
    rows = {
        "parameters": f"{model.n_parameters():,}",
        "FLOPs per token": f"{flops:,} (full causal windows)",
        "steps": f"{train.steps:,} of {train.batch_tokens:,} tokens, {train.steps * train.batch_tokens:,} in all",
        "micro-batches": f"{train.accumulation} of {train.micro_batch_tokens:,} tokens on each process",
        "hours": "unknown (the peak of float32 is not in the table)",
        "checkpoint": f"{checkpoint / GB:,.2f} GB (weights and AdamW's moments)",
        "checkpoints kept": f"{kept * checkpoint / GB:,.2f} GB ({kept}; one more while it is written)",
        "shards": f"{tokens * int(token_dtype(model.vocab_size)[-1]) / GB:,.2f} GB (from {source})",
        "counts.npz": f"{counts_bytes(experiment):,} bytes",
    }
    if bf16:
        hours, again = hours_of(experiment, "A100"), "; a third more for train.recompute" if train.recompute else ""
        named = f"arXiv:2410.18745, A.2: {PAPER_DAYS} days for 1T tokens on {PAPER_GPUS} A100"
        time = f"{hours:,.1f} ({hours / 24:,.1f} days) on {train.world_size} x A100"
        rows["hours"] = f"{time} at utilisation {paper_utilisation():.2f} ({named}{again})"
        others = [f"{hours_of(experiment, gpu):,.1f} on {gpu}" for gpu in PEAK_FLOPS if gpu != "A100"]
        rows["hours elsewhere"] = f"{', '.join(others)}, at the same utilisation"
    return [f"{name:<{WIDTH - 12}}{value}" for name, value in rows.items()]


def hours_of(experiment: Experiment, gpu: str) -> float:
    """Compute the hours of a run on GPUs of a kind, in bfloat16 at the paper's utilisation."""
    train = experiment.train
    flops = experiment.model.flops_per_token_causal(experiment.data.window) * train.steps * train.batch_tokens
    work = flops * (RECOMPUTED if train.recompute else 1)
    return work / (PEAK_FLOPS[gpu] * paper_utilisation() * train.world_size) / SECONDS_PER_HOUR


def paper_utilisation() -> float:
    """Compute the utilisation, in causal FLOPs, of the paper's 28 days.

    Example:
        >>> round(paper_utilisation(), 2)
        0.66
    """
    flops = DecoderConfig(*PAPER_MODEL).flops_per_token_causal(PAPER_WINDOW) * PAPER_TOKENS
    return flops / (PAPER_DAYS * SECONDS_PER_DAY * PAPER_GPUS * PEAK_FLOPS["A100"])


def checkpoint_bytes(experiment: Experiment) -> int:
    """Count the bytes of a checkpoint: the parameters' states, a row for each stream of packs, and counts.npz."""
    streams = experiment.train.n_packs * (1 + experiment.data.look_ahead) * INT64
    return experiment.model.n_parameters() * STATE_BYTES + streams + counts_bytes(experiment)


def counts_bytes(experiment: Experiment) -> int:
    """Count the bytes of counts.npz, with loss weights if there are any."""
    weighs = experiment.shape is not None and isinstance(experiment.shape.strategy, Weights)
    weights = np.ones(experiment.reach) if weighs else None
    return len(packed_counts(PositionCounts(experiment.reach, weights=weights)))


def shard_tokens_of(data: DataConfig, trained: int) -> tuple[int, str]:
    """Estimate the tokens in the shards, and name the source of the number."""
    drawn = data.upsample.tokens if data.upsample is not None else None
    if isinstance(data.corpus, Slimpajama) and data.corpus.path is None:
        named = "SlimPajama-627B by its name"
        if data.base is None:
            return SLIMPAJAMA_TOKENS, named
        derived = drawn or SLIMPAJAMA_TOKENS
        return SLIMPAJAMA_TOKENS + derived, f"{named} and {derived:,} derived"
    if drawn is not None:
        return drawn, "data.upsample.tokens; the corpus they come from is not known"
    return trained, "train.tokens; the corpus is not known"


def estimate_recipe(words: Words) -> str:
    """Estimate the resources of each training stage of a recipe and format them.

    Raises: LabError, a line for each stage that does not fit.
    """
    settings, options = separate(words)
    recipe = read_recipe(Path(words.places[0]), settings)
    if Path(recipe.base).is_dir():
        source = read_source(Path(recipe.base))
    else:
        recipe, source = with_architecture(recipe)
    experiments, faults = resolve_training(recipe, source)
    parts = []
    for stage, experiment in experiments.items() if not faults else ():
        try:
            parts.append(estimate(experiment, options))
        except ConfigError as error:
            faults += [f"{stage}.{fault}" for fault in error.faults]
    if faults:
        raise ConfigError(*faults)
    return "\n\n\n".join(parts)


def with_architecture(recipe: Recipe) -> tuple[Recipe, Source]:
    """Add the architecture that `common.model` states to every stage of a recipe whose base is absent.

    Raises: ConfigError.
    """
    model = architecture_of(part(recipe.common, "model"), "common.model", recipe.base)
    position = {"frequency": {"method": "rope"}, **part(recipe.common, "position")}
    common = {**recipe.common, "model": model, "position": position}
    return dataclasses.replace(recipe, common=common), Source(model, position, tokenizer_of(recipe.base), None)


def main(arguments: Sequence[str]) -> int:
    """Run `lab.longrecipe --dry_run` and return the exit status."""
    return run(None, arguments, estimate_recipe, syntax=SYNTAX._replace(flags=("--dry_run",)))
