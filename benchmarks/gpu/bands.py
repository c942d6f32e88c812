"""Distance methods, and FlashAttention 3, against plain attention, forward and backward in turns, on a few layers."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch
from torch.nn import attention

from benchmarks.gpu.stage import Case, Options, Skipped, run
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


def subject(options: Options, length: int, backend: str) -> tuple[Decoder, torch.Tensor]:
    """Build the layers and a row of tokens."""
    device, size = best_device(), options.size
    decoder = new_decoder(shape(size.band_layers, size.band_heads), device, backend=backend)
    decoder.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    return decoder, torch.randint(decoder.cfg.vocab_size, (1, length), device=device)


def train_by(implementation: str, decoder: Decoder, tokens: torch.Tensor) -> None:
    """Do so without a method, by torch's own FlashAttention 2 or by the package of 3."""
    if attention.current_flash_attention_impl() is not None:
        attention.restore_flash_attention_impl()
    if implementation == "FA3":
        attention.activate_flash_attention_impl("FA3")
    train(decoder, "plain", tokens)


def implementations(options: Options, length: int) -> dict[str, Any]:
    """Time FlashAttention 3 and 2 in turns.

    Raises: Skipped without both.
    """
    device = best_device()
    if (fault := backends.activate(device)) is not None:
        raise Skipped(f"FlashAttention 3 cannot be used: {fault or 'is not installed'}")
    decoder, tokens = subject(options, length, "varlen")
    calls = {name: partial(train_by, name, decoder, tokens) for name in ("FA2", "FA3")}
    seconds = in_turns(calls, device, options.size.turns)
    figures = {name: statistics.median(spent) for name, spent in seconds.items()}
    return {"length": length, **figures, "ratio_to_FA2": ratio(seconds["FA3"], seconds["FA2"])}


def measure(options: Options, length: int, name: str) -> dict[str, Any]:
    """Time a method and plain attention in turns, and compare peak memory."""
    device, size = best_device(), options.size
    decoder, tokens = subject(options, length, "auto")
    calls = {way: partial(train, decoder, way, tokens) for way in ("plain", name)}
    seconds = in_turns(calls, device, size.turns)
    figures = {"length": length, "layers": size.band_layers, "step_s": statistics.median(seconds[name])}
    figures["ratio_to_plain"] = ratio(seconds[name], seconds["plain"])
    if device.type == "cuda":
        peaks = {way: peak_bytes(call) for way, call in calls.items()}
        figures |= {"peak_gib": peaks[name] / 2**30, "peak_to_plain": peaks[name] / peaks["plain"]}
    return figures


def peak_bytes(call: partial[None]) -> int:
    """Measure the peak of the allocator during a call."""
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated()


def cases(options: Options) -> list[Case]:
    """List every method, and FlashAttention 3, at every length."""
    lengths = options.size.band_lengths
    methods = [(f"{name} {n:,}", partial(measure, options, n, name)) for n in lengths for name in METHODS]
    return [*methods, *((f"FlashAttention 3 {n:,}", partial(implementations, options, n)) for n in lengths)]


if __name__ == "__main__":
    run(cases)
