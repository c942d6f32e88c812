"""Generation as a probe does it, a batch of prompts read and continued greedily, against the device's roofline."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch

from benchmarks import roofline
from benchmarks.gpu.sizes import Size
from benchmarks.gpu.stage import Case, Options, run
from benchmarks.gpu.training import new_decoder
from benchmarks.timing import best_device, in_turns
from lab.model.config import DecoderConfig
from lab.model.generate import greedy


def measure(cfg: DecoderConfig, size: Size, length: int) -> dict[str, Any]:
    """Time prompts alone and with their continuation, in turns, and divide by the least seconds."""
    device, batch, n_tokens = best_device(), size.batch, size.new_tokens
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    decoder = new_decoder(cfg, device, backend="auto", recompute=False).to(dtype).eval()
    prompts = torch.randint(cfg.vocab_size, (batch, length), device=device)
    speed = roofline.measured(device, dtype, size.roof_part)
    least = roofline.least_s(cfg, batch, length, n_tokens, decoder.embedding.weight.element_size(), speed)
    calls = {str(n): partial(greedy, decoder, prompts, n) for n in (1, n_tokens)}
    prefill_s, whole_s = map(statistics.median, in_turns(calls, device, size.turns).values())
    step_s = max(whole_s - prefill_s, 0.0) / (n_tokens - 1)
    return {
        "batch": batch,
        "length": length,
        "new_tokens": n_tokens,
        "prefill_s": prefill_s,
        "step_s": step_s,
        "whole_s": whole_s,
        "prefill_roof": prefill_s / least["prefill"],
        "step_roof": step_s / least["step"],
        "whole_roof": whole_s / least["whole"],
        **speed.figures(),
    }


def cases(options: Options) -> list[Case]:
    """List the prompt lengths."""
    size = options.size
    return [(f"{n:,}", partial(measure, size.small_model(), size, n)) for n in size.prompts]


if __name__ == "__main__":
    run(cases)
