"""Distance methods, and FlashAttention 3, against plain attention, forward and backward in turns, on a few layers."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch
from torch.nn import attention

from benchmarks.gpu.stage import Case, Options, Skipped
from benchmarks.gpu.training import new_decoder
from benchmarks.position_methods import method, shape
from benchmarks.timing import best_device, in_turns, ratio
from lab.model.attention import backends
from lab.model.decoder import Decoder

METHODS = ("string", "dca", "self_extend", "rerope", "leaky_rerope")


def train(decoder: Decoder, name: str, tokens: torch.Tensor) -> None:
    """Run one forward and backward pass under a method."""
    decoder.distance = method(name, tokens.shape[1])
    decoder.zero_grad()
    loss: torch.Tensor = decoder(tokens, targets=tokens)
    loss.backward()


def train_by(decoder: Decoder, name: str, tokens: torch.Tensor) -> None:
    """Do so without a method, by torch's own FlashAttention 2 (FA2) or by the package of 3 (FA3)."""
    if attention.current_flash_attention_impl() is not None:
        attention.restore_flash_attention_impl()
    if name == "FA3":
        attention.activate_flash_attention_impl(name)
    train(decoder, "plain", tokens)


def measure(options: Options, length: int, name: str) -> dict[str, Any]:
    """Time a method against plain attention, or FlashAttention 3 against 2, in turns, and compare peak memory.

    Raises: Skipped without FlashAttention 3.
    """
    device, size = best_device(), options.size
    base, backend, call = ("FA2", "varlen", train_by) if name == "FA3" else ("plain", "auto", train)
    if name == "FA3" and (fault := backends.activate(device)) is not None:
        raise Skipped(f"FlashAttention 3 cannot be used: {fault or 'is not installed'}")
    decoder = new_decoder(shape(size.band_layers, size.band_heads), device, backend=backend)
    decoder.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    tokens = torch.randint(decoder.cfg.vocab_size, (1, length), device=device)
    calls = {way: partial(call, decoder, way, tokens) for way in (base, name)}
    seconds = in_turns(calls, device, size.turns)
    figures = {"length": length, "layers": size.band_layers, "step_s": statistics.median(seconds[name])}
    figures[f"ratio_to_{base}"] = ratio(seconds[name], seconds[base])
    if device.type == "cuda":
        peaks = {way: peak_bytes(call) for way, call in calls.items()}
        figures |= {"peak_gib": peaks[name] / 2**30, f"peak_to_{base}": peaks[name] / peaks[base]}
    return figures


def peak_bytes(call: partial[None]) -> int:
    """Measure the peak of the allocator during a call."""
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated()


def cases(options: Options) -> list[Case]:
    """List every method, and FlashAttention 3, at every length."""
    lengths = options.size.band_lengths
    return [(f"{name} {n:,}", partial(measure, options, n, name)) for n in lengths for name in (*METHODS, "FA3")]
