"""Operations, hours and bytes on disk of a run, computed from its config; no torch, no files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.config import Experiment
from lab.counts import PositionCounts
from lab.data.config import DataConfig, Slimpajama
from lab.data.shards import token_dtype
from lab.model.config import DecoderConfig
from lab.model.utilisation import PEAK_FLOPS
from lab.shape.config import Weights
from lab.train.folder import packed_counts

PAPER_TOKENS, PAPER_GPUS, PAPER_DAYS = 1e12, 16, 28
"""arXiv:2410.18745, A.2: 2K windows, 1T tokens, 16 A100, 28 days."""
PAPER_MODEL = DecoderConfig(2048, 22, 32, 4, 5632, 128_256, False)
PAPER_WINDOW = 2048
SECONDS_PER_HOUR, SECONDS_PER_DAY = 3600, 86_400
SLIMPAJAMA_TOKENS = 627_000_000_000  # from its name, counted with another tokenizer
STATES_OF_WEIGHT = 3  # the weight and AdamW's two moments, float32 each
FLOAT32, INT64 = 4, 8
RECOMPUTED = 4 / 3  # forward once more: 8 instead of 6 operations per weight and token


@dataclass(frozen=True)
class Cost:
    """A run's work and disk space; `hours` is None if the GPU's peak is unknown."""

    parameters: int
    flops_per_token: int
    tokens: int
    steps: int
    hours: float | None
    checkpoint_bytes: int
    kept_checkpoints: int
    shard_bytes: int
    shard_source: str
    counts_bytes: int


def paper_utilisation() -> float:
    """Compute the utilisation, in causal FLOPs, of the paper's 28 days.

    Example:
        >>> round(paper_utilisation(), 2)
        0.66
    """
    flops = PAPER_MODEL.flops_per_token_causal(PAPER_WINDOW) * PAPER_TOKENS
    return flops / (PAPER_DAYS * SECONDS_PER_DAY * PAPER_GPUS * PEAK_FLOPS["A100"])


def cost_of(experiment: Experiment, *, peak_flops: float | None, utilisation: float) -> Cost:
    """Compute a run's cost on GPUs of a given peak at a given utilisation."""
    model, train = experiment.model, experiment.train
    flops, tokens = model.flops_per_token_causal(experiment.data.window), train.steps * train.batch_tokens
    hours = None
    if peak_flops is not None:
        work = flops * tokens * (RECOMPUTED if train.recompute else 1)
        hours = work / (peak_flops * utilisation * train.world_size) / SECONDS_PER_HOUR
    shard_tokens, source = shard_tokens_of(experiment.data, tokens)
    weighs = experiment.shape is not None and isinstance(experiment.shape.strategy, Weights)
    counts = counts_bytes(experiment.reach, weighs=weighs)
    return Cost(
        parameters=model.n_parameters(),
        flops_per_token=flops,
        tokens=tokens,
        steps=train.steps,
        hours=hours,
        checkpoint_bytes=model.n_parameters() * STATES_OF_WEIGHT * FLOAT32 + stream_bytes(experiment) + counts,
        kept_checkpoints=max(train.keep_checkpoints, len(train.final_steps)),
        shard_bytes=shard_tokens * int(token_dtype(model.vocab_size)[-1]),
        shard_source=source,
        counts_bytes=counts,
    )


def stream_bytes(experiment: Experiment) -> int:
    """Count the bytes of the data streams' states, one row for each pack of a global batch."""
    return experiment.train.n_packs * (1 + experiment.data.look_ahead) * INT64


def counts_bytes(reach: int, *, weighs: bool = False) -> int:
    """Count the bytes of counts.npz, with loss weights if there are any."""
    return len(packed_counts(PositionCounts(reach, weights=np.ones(reach) if weighs else None)))


def shard_tokens_of(data: DataConfig, trained: int) -> tuple[int, str]:
    """Estimate the tokens in the shards, and name the source of the number."""
    whole = isinstance(data.corpus, Slimpajama) and data.corpus.path is None
    drawn = data.upsample.tokens if data.upsample is not None else None
    if whole:
        named = "SlimPajama-627B by its name"
        if data.base is None:
            return SLIMPAJAMA_TOKENS, named
        derived = drawn or SLIMPAJAMA_TOKENS
        return SLIMPAJAMA_TOKENS + derived, f"{named} and {derived:,} derived"
    if drawn is not None:
        return drawn, "data.upsample.tokens; the corpus they come from is not known"
    return trained, "train.tokens; the corpus is not known"
