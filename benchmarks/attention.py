"""Attention alone, forward and backward, over packed rows: every backend under plain distance, then every method.

    python -m benchmarks.attention [--windows 2048,8192] [--tokens N] [--turns N] [--methods string,dca] [--json FILE]

A row is cut into segments of one window; heads are those of the 1.49B model on a GPU (32 query and 4 key-value heads of
64, bfloat16), 8 and 2 in float32 on a CPU. Times are medians, measured in turns within each table, after one turn that
warms up. The methods run by the backend that auto chooses; on an H100 or H200 with FlashAttention 3 that is another
kernel than the backends' varlen. TFLOP/s count the causal pairs alone: 4 operations forward and 8 backward for each
pair and feature. STRING shifts by a third of the window, DCA has a pretraining window of 2/3 of it, the windows of the
others are a quarter. On a GPU `peak_gib` is the allocator's peak so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.timing import best_device, heading, in_turns, ratio
from lab.core.errors import LabError
from lab.model.attention import backends
from lab.model.attention.attend import attend_layout
from lab.model.attention.kernels import CAUSAL_KERNELS
from lab.model.attention.layout import Layout
from lab.model.attention.segments import Segments
from lab.positions import Distance, distance, frequencies

WIDTH = 64
METHODS = "string,dca,self_extend,rerope,leaky_rerope"


def method(name: str, length: int) -> Distance:
    """Build a method with parameters that fit a length."""
    window = max(1, length // 4)
    parameters: dict[str, dict[str, float]] = {
        "plain": {},
        "string": {"shift": max(1, length // 3), "window": min(128, length // 3)},
        "dca": {"train_len": max(4, 2 * length // 3)},
        "self_extend": {"group": 4, "window": window},
        "rerope": {"window": window},
        "leaky_rerope": {"window": window, "leak": 4.0},
    }
    return distance(name, **parameters[name])


@dataclass(frozen=True)
class Row:
    """Queries, keys and values of a packed row, whose segments are one window long."""

    leaves: tuple[Tensor, ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, window: int, tokens: int, heads: tuple[int, int], device: torch.device) -> Row:
        """Draw a row of at least one window and at most `tokens` tokens."""
        lengths = (window,) * max(1, tokens // window)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        shapes = ((1, n, sum(lengths), WIDTH) for n in (heads[0], heads[1], heads[1]))
        draw = partial(torch.randn, device=device, dtype=dtype, requires_grad=True)
        return cls(tuple(draw(shape) for shape in shapes), lengths)

    def layout(self, name: str) -> Layout:
        """Prepare what all layers of a pass share under a method."""
        q = self.leaves[0]
        segments = Segments.from_lengths(self.lengths, q.shape[2], q.device)
        ids, rope = segments.position_ids, frequencies("rope", head_dim=WIDTH)
        starts = (0,) * len(self.lengths)
        return Layout(ids, ids, rope, method(name, self.lengths[0]), q.dtype, segments=segments, starts=starts)

    def pass_of(self, name: str, backend: str) -> Callable[[], None]:
        """Return a call that attends under a method by a backend, forward and backward.

        Raises: LabError for a backend that cannot run here.
        """
        layout, (q, k, v) = self.layout(name), self.leaves

        def run() -> None:
            out = attend_layout(q, k, v, layout, layer=0, backend=backend)
            torch.autograd.grad(out, self.leaves, torch.ones_like(out))

        run()
        return run

    def teraflops(self) -> float:
        """Count the operations of a pass."""
        pairs = sum(n * (n + 1) // 2 for n in self.lengths)
        return 12 * self.leaves[0].shape[1] * WIDTH * pairs / 1e12


def measure(row: Row, ways: dict[str, tuple[str, str]], stage: str, turns: int, log: record.Log) -> None:
    """Time ways, each a method and a backend, in turns; one that cannot run here is recorded as skipped."""
    case, device = f"window {row.lengths[0]:,}", row.leaves[0].device
    calls = {}
    for name, (chosen, backend) in ways.items():
        try:
            calls[name] = row.pass_of(chosen, backend)
        except LabError as error:
            log.add(f"{stage} {name}", case, status="skipped", reason=str(error))
    times = in_turns(calls, device, turns)
    first = next(iter(times))
    for name, spent in times.items():
        pass_s = median(spent.wall_s)
        figures = {
            "tokens": sum(row.lengths),
            "pass_s": pass_s,
            "tokens_per_s": sum(row.lengths) / pass_s,
            "tflop_per_s": row.teraflops() / pass_s,
            f"ratio_to_{first}": ratio(spent.wall_s, times[first].wall_s),
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
        }
        log.add(f"{stage} {name}", case, figures)
        print(f"{case:>14} {name:>13} {figures['pass_s'] * 1e3:>9.2f} ms", end=" ")
        print(f"{figures['tokens_per_s']:>13,.0f} tokens/s {figures['tflop_per_s']:>7.2f} TFLOP/s", end=" ")
        print(f"{figures[f'ratio_to_{first}']:>6.2f} x {first}", flush=True)


def main() -> None:
    """Print the tables."""
    device = best_device()
    on_gpu = device.type == "cuda"
    windows, tokens = ("2048,4096,8192,16384,32768", 32768) if on_gpu else ("256,1024", 2048)
    options = record.read_options(__doc__, windows=windows, tokens=tokens, turns=7, methods=METHODS)
    log = record.Log("attention", options.json)
    heads = (32, 4) if on_gpu else (8, 2)
    print(f"{heading(device)}, {heads[0]} heads of {WIDTH}, {heads[1]} key-value heads, forward and backward")
    for window in map(int, options.windows.split(",")):
        row = Row.of(window, options.tokens, heads, device)
        measure(row, {name: ("plain", name) for name in CAUSAL_KERNELS}, "backend", options.turns, log)
    name, reason = backends.choose_backend("auto", device, row.leaves[0].dtype)
    print(f"methods by {name}: {reason}")
    for window in map(int, options.windows.split(",")):
        row = Row.of(window, options.tokens, heads, device)
        names = ("plain", *options.methods.split(","))
        measure(row, {name: (name, "auto") for name in names}, "method", options.turns, log)


if __name__ == "__main__":
    main()
