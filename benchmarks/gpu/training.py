"""Training steps of a model with random weights on packs of natural segments: speed, memory, recompilations.

A step is what a training step of one GPU computes: forward and backward pass of compiled blocks in bf16 with float32
weights, sharded over a mesh of one rank, or with `autocast` not sharded, clipping, AdamW; on a CPU all is float32 and
what would be compiled runs as traced. Reading data, records and exchanges between processes are not part of it.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.packed_attention import natural_lengths
from benchmarks.timing import best_device, wait
from lab.model.attention import backends
from lab.model.attention.segments import Segments
from lab.model.config import DecoderConfig, peak_flops, utilisation
from lab.model.decoder import Decoder
from lab.model.sharding import Sharding, shard
from lab.positions import frequencies

WARM_UP = 3
PACKS = 4  # different ones, so that shapes change as in a run
LEARNING_RATE, CLIP_NORM = 4e-4, 1.0


@dataclass(frozen=True)
class Setting:
    """What differs between the cases."""

    tokens: int
    window: int
    steps: int
    backend: str = "auto"
    recompute: bool = False
    compiled: bool = True
    autocast: bool = False


def new_decoder(
    cfg: DecoderConfig, device: torch.device, *, backend: str, recompute: bool, compiler: str | None = None
) -> Decoder:
    """Build a decoder whose random weights are drawn on the device, which a CPU would take longest of all for."""
    rope = frequencies("rope", head_dim=cfg.head_dim, theta=cfg.theta)
    with torch.device("meta"):
        decoder = Decoder(cfg, frequencies=rope, backend=backend, seed=None, recompute=recompute, compiler=compiler)
    decoder.to_empty(device=device)
    if cfg.tie_embeddings:  # leaving the meta device parts them
        decoder.head.weight = decoder.embedding.weight
    torch.manual_seed(0)
    for parameter in decoder.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=cfg.d_model**-0.5 / 2)
        else:
            torch.nn.init.ones_(parameter)
    return decoder


def packs(cfg: DecoderConfig, setting: Setting, device: torch.device) -> list[tuple[Tensor, Segments]]:
    """Draw packs of natural segment lengths with random tokens."""
    drawn = []
    for seed in range(PACKS):
        lengths = natural_lengths(setting.tokens, setting.window, seed)
        tokens = torch.randint(cfg.vocab_size, (1, setting.tokens), device=device)
        segments = Segments.from_lengths(lengths, setting.tokens, device)
        drawn.append((tokens, segments))
    return drawn


def stepper(decoder: Decoder, drawn: list[tuple[Tensor, Segments]], *, autocast: bool = False) -> Callable[[], Tensor]:
    """Return a function that trains on the next pack and returns the loss per token, without waiting for the device."""
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=LEARNING_RATE, fused=True)
    order = itertools.cycle(drawn)

    def step() -> Tensor:
        tokens, segments = next(order)
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=autocast):
            loss: Tensor = decoder(tokens, segments=segments, targets=tokens) / tokens.numel()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def shard_alone(decoder: Decoder, device: torch.device) -> None:
    """Shard a decoder over this process alone, as a run in bf16 on one GPU does."""
    if not distributed.is_initialized():
        store = distributed.HashStore()  # type: ignore[attr-defined]
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    shard(decoder, init_device_mesh(device.type, (1,)), Sharding(torch.bfloat16, whole=True))


def prepared(cfg: DecoderConfig, setting: Setting) -> tuple[str, Callable[[], Tensor], list[tuple[Tensor, Segments]]]:
    """Build the model and the packs of a setting; return the backend it takes, the step and the packs.

    Raises: LabError for a backend that cannot run here.
    """
    device = best_device()
    on_gpu = device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    backend, _ = backends.choose(setting.backend, device, dtype)
    compiler = ("inductor" if on_gpu else "eager") if setting.compiled else None
    decoder = new_decoder(cfg, device, backend=backend, recompute=setting.recompute, compiler=compiler)
    if on_gpu and not setting.autocast:
        shard_alone(decoder, device)
    drawn = packs(cfg, setting, device)
    return backend, stepper(decoder, drawn, autocast=on_gpu and setting.autocast), drawn


def train(cfg: DecoderConfig, setting: Setting) -> dict[str, Any]:
    """Train for the steps of a setting after a warm-up, and measure.

    Raises: LabError for a backend that cannot run here.
    """
    device = best_device()
    if device.type == "cuda":
        gc.collect()  # a sharded decoder refers to itself
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    backend, step, drawn = prepared(cfg, setting)
    losses = [step() for _ in range(WARM_UP)]
    compiled = graphs()
    wait(device)
    start = time.perf_counter()
    losses += [step() for _ in range(setting.steps)]
    wait(device)
    tokens_per_s = setting.steps * setting.tokens / (time.perf_counter() - start)
    return {
        "backend": backend,
        "compiled": setting.compiled,
        "autocast": setting.autocast,
        "recompute": setting.recompute,
        "pack_tokens": setting.tokens,
        "window": setting.window,
        "parameters": cfg.n_parameters(),
        "steps": setting.steps,
        "step_s": setting.tokens / tokens_per_s,
        "tokens_per_s": tokens_per_s,
        **utilisations(cfg, setting, drawn, tokens_per_s),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
        "recompilations": graphs() - compiled,
        "first_loss": float(losses[0]),
        "last_loss": float(losses[-1]),
    }


def graphs() -> int:
    """Count the graphs that torch.compile has compiled in this process; none before anything loads the compiler."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def utilisations(
    cfg: DecoderConfig, setting: Setting, drawn: list[tuple[Tensor, Segments]], tokens_per_s: float
) -> dict[str, float | None]:
    """Compute the share of the device's peak, with windows always full and with the pairs attended."""
    peak = peak_flops(torch.cuda.get_device_name() if torch.cuda.is_available() else None)
    pairs = sum(pairs_of(segments) for _, segments in drawn) / (len(drawn) * setting.tokens)
    return {
        "mfu_causal": utilisation(cfg.flops_per_token_causal(setting.window), tokens_per_s, peak, 1),
        "mfu_pairs": utilisation(cfg.flops_per_token(pairs), tokens_per_s, peak, 1),
    }


def pairs_of(segments: Segments) -> float:
    """Count the pairs of tokens that a pack attends."""
    return sum(n * (n + 1) / 2 for n in segments.lengths)
