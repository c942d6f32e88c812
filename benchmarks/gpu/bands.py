"""Distance methods forward and backward against plain attention, in turns, on a few layers of head width 64."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.stage import Case, Options, run
from benchmarks.gpu.training import new_decoder
from benchmarks.position_methods import method, shape
from benchmarks.timing import best_device, in_turns, ratio
from lab.model.decoder import Decoder

METHODS = ("string", "dca", "self_extend", "rerope", "leaky_rerope")


def train(decoder: Decoder, name: str, tokens: torch.Tensor) -> None:
    """Run one forward and backward pass under a method."""
    decoder.distance = method(name, tokens.shape[1])
    decoder.zero_grad()
    loss: torch.Tensor = decoder(tokens, targets=tokens)
    loss.backward()


def measure(options: Options, length: int, name: str) -> dict[str, Any]:
    """Time a method and plain attention in turns, and compare peak memory."""
    device, size = best_device(), options.size
    decoder = new_decoder(shape(size.band_layers, size.band_heads), device, backend="auto", recompute=False)
    decoder.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    tokens = torch.randint(decoder.cfg.vocab_size, (1, length), device=device)
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
    """List every method at every length."""
    lengths = options.size.band_lengths
    return [(f"{name} {n:,}", partial(measure, options, n, name)) for n in lengths for name in METHODS]


if __name__ == "__main__":
    run(cases)
