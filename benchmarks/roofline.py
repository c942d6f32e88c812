"""The least time that generation can take on a device: its float operations at the speed of a large matrix product, or
its bytes at the speed of reading a large tensor, whichever is more; both speeds are measured in the same process.

A prefill of B prompts of T tokens multiplies every token with the weights of all blocks but the last; there keys and
values are enough, and the rest and the head follow for B tokens. Causal attention takes 4 D operations for each of
T (T + 1) / 2 pairs, in the last block for T of them. A step does the same for B tokens, and reads all weights and the
keys and values of all rows.

    python -m benchmarks.roofline [--dtype bfloat16] [--json FILE]      measures both speeds
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.timing import best_device, heading, timed
from lab.model.config import DecoderConfig
from lab.model.devices import Linear

PRODUCT_SIZE = {"cpu": 2048, "cuda": 8192}
READ_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}  # no cache holds it
TIMES = 5
Least = dict[str, float]  # seconds of prefill, of a step and of the whole


@dataclass(frozen=True)
class Work:
    """What must be computed and read."""

    operations: float
    bytes: float

    def seconds(self, device: Speed) -> float:
        """Return the least time it takes."""
        return max(self.operations / device.operations_per_s, self.bytes / device.bytes_per_s)


@dataclass(frozen=True)
class Speed:
    """What a device can do."""

    operations_per_s: float
    bytes_per_s: float

    def __str__(self) -> str:
        """Write both with their units."""
        return f"{self.operations_per_s / 1e9:,.0f} GFLOP/s, {self.bytes_per_s / 1e9:,.0f} GB/s"

    def figures(self) -> record.Figures:
        """Return both as figures."""
        return {"tflop_per_s": self.operations_per_s / 1e12, "read_gb_per_s": self.bytes_per_s / 1e9}


def weights(cfg: DecoderConfig) -> tuple[int, int, int]:
    """Count the weights that multiply a token: of a block, of its keys and values alone, of the head."""
    keys_values = 2 * cfg.d_model * cfg.kv_width
    block = keys_values + 2 * cfg.d_model * cfg.width + 3 * cfg.d_model * cfg.d_ff
    return block, keys_values, cfg.d_model * cfg.vocab_size


def prefill(cfg: DecoderConfig, batch: int, length: int, element_bytes: int) -> Work:
    """Count the work of reading prompts and of the logits that follow.

    Example:
        >>> sizes = {"d_model": 4, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "d_ff": 6, "vocab_size": 10}
        >>> cfg = DecoderConfig(**sizes, tie_embeddings=True)
        >>> block = 2 * 4 * 2 + 2 * 4 * 4 + 3 * 4 * 6  # keys and values, queries and output, feed-forward layer
        >>> products = 3 * block + 3 * 2 * 4 * 2 + (block - 2 * 4 * 2) + 10 * 4
        >>> prefill(cfg, 1, 3, 4) == Work(2 * products + 4 * 4 * (6 + 3), 4 * (2 * block + 10 * 4 + 2 * 2 * 3 * 2))
        True
    """
    block, keys_values, head = weights(cfg)
    products = batch * (length * (block * (cfg.n_layers - 1) + keys_values) + block - keys_values + head)
    pairs = batch * (length * (length + 1) // 2 * (cfg.n_layers - 1) + length)
    cache = batch * length * 2 * cfg.kv_width * cfg.n_layers
    return Work(2 * products + 4 * cfg.width * pairs, element_bytes * (block * cfg.n_layers + head + cache))


def step(cfg: DecoderConfig, batch: int, length: int, element_bytes: int) -> Work:
    """Count the work of one more token for rows of `length` tokens, itself included.

    Example:
        >>> sizes = {"d_model": 4, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "d_ff": 6, "vocab_size": 10}
        >>> cfg = DecoderConfig(**sizes, tie_embeddings=True)
        >>> n_weights = 2 * (2 * 4 * 2 + 2 * 4 * 4 + 3 * 4 * 6) + 10 * 4
        >>> step(cfg, 5, 7, 4) == Work(2 * 5 * n_weights + 4 * 4 * 5 * 7 * 2, 4 * (n_weights + 5 * 7 * 2 * 2 * 2))
        True
    """
    block, _, head = weights(cfg)
    n_weights, seen = block * cfg.n_layers + head, batch * length * cfg.n_layers
    return Work(2 * batch * n_weights + 4 * cfg.width * seen, element_bytes * (n_weights + 2 * cfg.kv_width * seen))


@torch.no_grad()
def measured(device: torch.device, dtype: torch.dtype, part: int = 1) -> Speed:
    """Time a large product and a read of much memory, the best of several; `part` divides the sizes of both."""
    size, read_bytes = PRODUCT_SIZE[device.type] // part, READ_BYTES[device.type] // part
    layer = Linear(size, size, bias=False, device=device, dtype=dtype)
    x = torch.randn(size, size, device=device, dtype=dtype)
    much = torch.ones(read_bytes // 4, device=device)
    return Speed(2 * size**3 / best(lambda: layer(x), device), read_bytes / best(much.sum, device))


def best(call: Callable[[], Tensor], device: torch.device) -> float:
    """Return the shortest of several calls' seconds, after one that is not counted."""
    return min([timed(call, device) for _ in range(TIMES + 1)][1:])


def least_s(cfg: DecoderConfig, batch: int, length: int, n_tokens: int, element_bytes: int, speed: Speed) -> Least:
    """Compute the least seconds of generating `n_tokens` tokens after prompts."""
    works = [step(cfg, batch, length + n, element_bytes) for n in range(1, n_tokens)]
    prefill_s = prefill(cfg, batch, length, element_bytes).seconds(speed)
    step_s = statistics.mean(work.seconds(speed) for work in works)
    return {"prefill": prefill_s, "step": step_s, "whole": prefill_s + len(works) * step_s}


def main() -> None:
    """Print the speeds."""
    parser = record.parser_of(__doc__)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    options = parser.parse_args()
    device = best_device()
    speed = measured(device, getattr(torch, options.dtype))
    print(f"{heading(device)}: {options.dtype}, {speed}")
    record.Log("roofline", options.json).add("speeds", options.dtype, speed.figures())


if __name__ == "__main__":
    main()
