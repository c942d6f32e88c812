"""The least time that generation can take on a device: its float operations at the speed of a large matrix product, or
its bytes at the speed of reading a large tensor, whichever is more; both speeds are measured in the same process.

A prefill of B prompts of T tokens multiplies every token with the weights of all blocks but the last; there keys and
values are enough, and the rest and the head follow for B tokens. Causal attention takes 4 D operations for each of
T (T + 1) / 2 pairs, in the last block for T of them. A step does the same for B tokens, and reads all weights and the
keys and values of all rows.

Of training, the tokens per second of an H200 are estimated between two ends. Products, attention and what is read and
written take their time after each other, at speeds that are assumed (`ENDS`): none has been measured.

    python -m benchmarks.roofline [--dtype bfloat16] [--json FILE]      measures both speeds, and prints both ends
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.timing import best_device, heading, timed
from lab.config import load_experiment
from lab.model.config import DecoderConfig
from lab.model.devices import Linear

ROOT = Path(__file__).resolve().parents[1]
PRODUCT_SIZE = {"cpu": 2048, "cuda": 8192}
READ_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}  # no cache holds it
TIMES = 5
Least = dict[str, float]  # seconds of prefill, of a step and of the whole
TRAINED = ("tiny_2k", "tiny_4k")
PEAK = 989e12  # bf16 FLOP/s of an H200: NVIDIA's data sheet
BLOCK_BYTES = 200e3  # of a token: what the kernels of a block between its products read and write (LOG.md)
OTHER_BYTES = 1.9e6  # of a token: the loss without its products, gradients added up, casts, AdamW (LOG.md)
LAUNCH_S = 816 * 1.5e-6  # gaps between the kernels of a micro-batch


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


@dataclass(frozen=True)
class Assumed:
    """What the kernels of training are assumed to reach."""

    products_per_s: float
    attention_per_s: float
    bytes_per_s: float = 4.1e12  # of the 4.8 TB/s of the data sheet

    def seconds(self, cfg: DecoderConfig, window: int, micro_batch: int) -> float:
        """Estimate the time of a token of full windows, forward and backward.

        Example, by hand: 6 FLOPs for each of 4 (2 * 2 + 2 * 4 + 3 * 6) + 10 * 4 weights, 12 * 4 for each of 2 pairs:
            >>> cfg = DecoderConfig(4, 1, 2, 1, 6, 10, tie_embeddings=True)
            >>> rest = (BLOCK_BYTES + OTHER_BYTES) / 8 + LAUNCH_S / 9
            >>> Assumed(2.0, 3.0, 8.0).seconds(cfg, 3, 9) == 6 * (120 + 40) / 2 + 12 * 4 * 2 / 3 + rest
            True
        """
        block, _, head = weights(cfg)
        products = 6 * (block * cfg.n_layers + head)
        pairs = cfg.n_layers * (window + 1) / 2
        moved = BLOCK_BYTES * cfg.n_layers + OTHER_BYTES
        compute_s = products / self.products_per_s + 12 * cfg.width * pairs / self.attention_per_s
        return compute_s + moved / self.bytes_per_s + LAUNCH_S / micro_batch


ENDS = {  # attention at heads of 64 and 2K on an H100, TFLOP/s of FlashAttention 2 and 3: forward 262 and 371, backward
    # without a mask 264 and 422 (arXiv:2407.08608, figures 5 and 6); packed documents are shorter
    "low: products at 60% of the peak, attention at 220 TFLOP/s": Assumed(0.6 * PEAK, 220e12),
    "high: products at 70% of the peak, attention at 300 TFLOP/s": Assumed(0.7 * PEAK, 300e12),
}


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
    log = record.Log("roofline", options.json)
    log.add("speeds", options.dtype, speed.figures())
    for name in TRAINED:
        experiment = load_experiment(ROOT / f"configs/{name}.yaml")
        sizes = (experiment.model, experiment.data.window, experiment.train.micro_batch_tokens)
        for end, assumed in ENDS.items():
            tokens_per_s = 1 / assumed.seconds(*sizes)
            print(f"{name} on an H200, estimate, {end}: {tokens_per_s:,.0f} tokens/s")
            log.add("training, estimate", f"{name}, {end}", {"tokens_per_s": tokens_per_s})


if __name__ == "__main__":
    main()
