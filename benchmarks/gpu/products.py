"""Measure the matrix products that decide the speed of the 1.3B model, in TFLOP/s.

    python -m benchmarks.gpu.products [--tokens 32768] [--turns 5] [--json FILE]

They are the seven of a block (k and v have one shape) and the loss's, whose tokens are a chunk, each in three passes:
the output, and the gradients of input and weight. They take 75 to 81% of a step. Each is measured twice, by torch's
library and by kernels that TORCHINDUCTOR_MAX_AUTOTUNE=1 selects; without a GPU by the library alone.
"""

import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.gpu.sizes import LARGE
from benchmarks.timing import best_device, heading, in_turns
from lab.config import load_experiment
from lab.model.loss import chunk_tokens


def main() -> int:
    """Print a line and write a record for each product and pass; return the exit status."""
    options = record.read_options(__doc__, tokens=32_768, turns=5)
    device, log, cfg = best_device(), record.Log("gpu.products", options.json), load_experiment(LARGE).model
    print(heading(device))
    layers = {
        "q": (cfg.d_model, cfg.width),
        "k": (cfg.d_model, cfg.kv_width),
        "v": (cfg.d_model, cfg.kv_width),
        "out": (cfg.width, cfg.d_model),
        "gate": (cfg.d_model, cfg.d_ff),
        "up": (cfg.d_model, cfg.d_ff),
        "down": (cfg.d_ff, cfg.d_model),
        "loss": (cfg.d_model, cfg.vocab_size),
    }
    if device.type != "cuda":
        layers = {name: (n_in // 64, n_out // 64) for name, (n_in, n_out) in layers.items()}
    failed = False
    for name, (n_in, n_out) in layers.items():
        n = min(options.tokens, chunk_tokens(cfg.vocab_size)) if name == "loss" else options.tokens
        x, weight, grad = (
            torch.randn(*shape, device=device).bfloat16() for shape in ((n, n_in), (n_out, n_in), (n, n_out))
        )
        passes = {"output": (x, weight.T), "input": (grad, weight), "weight": (grad.T, x)}
        for which, factors in passes.items():
            measure = partial(tflops, 2e-12 * n * n_in * n_out, factors, device, options.turns)
            written = log.add(name, which, **record.outcome_of(measure))
            print(f"{name:5} {which:7} {written.reason or written.figures}", flush=True)
            failed = failed or written.status == "failed"
    return int(failed)


def tflops(each: float, factors: tuple[Tensor, Tensor], device: torch.device, turns: int) -> record.Figures:
    """Return the TFLOP/s of a product of `each` TFLOP by the library, and tuned where there is a GPU."""
    calls: dict[str, Callable[[], Tensor]] = {"library": partial(torch.mm, *factors)}
    if device.type == "cuda":
        calls["autotuned"] = tune(factors)
    spent = in_turns(calls, device, turns, each=5, warm_up=2)
    return {name: 5 * each / statistics.median(times.wall_s) for name, times in spent.items()}


def tune(factors: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    """Compile a product for the shapes of its factors alone."""
    # All products have one code object. After the first, others would be compiled for any shape, and after 8 for none.
    torch._dynamo.reset()
    tuned = torch.compile(torch.mm, dynamic=False, options={"max_autotune": True})  # as the environment's variable does
    return partial(tuned, *factors)


if __name__ == "__main__":
    raise SystemExit(main())
