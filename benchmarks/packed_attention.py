"""Packed attention on this machine: the lab's sdpa backend against other exact ways, forward and backward, as ratios.

    python -m benchmarks.packed_attention [--threads N] [--json FILE]

Each row is one packed row of natural segment lengths; 1.00 is the lab's backend (one call per segment).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import record
from benchmarks.timing import median_s
from lab.model.attention.kernels import sdpa
from lab.model.attention.segments import Segments

SHAPES = [(2048, 128, 4, 4, 32), (2048, 256, 4, 2, 32), (4096, 256, 4, 2, 32), (8192, 1024, 8, 2, 64)]
REPEATS = 7


def natural_lengths(tokens: int, window: int, seed: int = 0) -> list[int]:
    """Draw segment lengths of the default natural distribution that fill `tokens`."""
    generator = np.random.default_rng(seed)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        document = int(np.ceil(0.26 * window * np.exp(generator.normal(0, 1.2))))
        while document > 0 and sum(lengths) < tokens:
            lengths.append(min(document, window, tokens - sum(lengths)))
            document -= lengths[-1]
    return lengths


def one_batch(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """Call the kernel once on all segments padded to the longest."""
    rows = torch.arange(max(segments.lengths))
    ends = segments.cu_seqlens[1:, None] - 1
    index = torch.minimum(segments.cu_seqlens[:-1, None] + rows, ends).flatten()
    kept = (rows < torch.tensor(segments.lengths)[:, None]).flatten().nonzero().flatten()
    padded = [x[0].transpose(0, 1)[index].unflatten(0, (-1, len(rows))).transpose(1, 2) for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*padded, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(0, 1)[kept].transpose(0, 1)[None]


def one_mask(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """Call the kernel once under a dense block-diagonal mask."""
    docs = segments.doc_ids
    mask = (docs[:, None] == docs[None]).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def seconds(run: Callable[[], Tensor]) -> float:
    """Time forward and backward, the median of several."""
    return median_s(lambda: run().sum().backward(), torch.device("cpu"), REPEATS)


def main() -> None:
    """Print the table."""
    parser = record.parser_of(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    log = record.Log("packed_attention", options.json)
    print(f"{'tokens':>7} {'window':>7} {'dtype':>9} {'lab ms':>8} {'one batch':>11} {'one mask':>9}")
    for tokens, window, heads, kv_heads, width in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            lengths = natural_lengths(tokens, window)
            segments = Segments.from_lengths(lengths, tokens)
            shapes = [(1, n, tokens, width) for n in (heads, kv_heads, kv_heads)]
            q, k, v = (torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes)
            ways = [partial(way, q, k, v, segments) for way in (sdpa, one_batch, one_mask)]
            ours, batch, mask = (seconds(way) for way in ways)
            name = str(dtype).removeprefix("torch.")
            print(f"{tokens:>7} {window:>7} {name:>9} {ours * 1e3:>8.1f} {batch / ours:>11.2f} {mask / ours:>9.2f}")
            figures = {"threads": options.threads, "lab_s": ours, "one_batch_ratio": batch / ours}
            log.add(f"window {window:,}", f"{tokens:,} {name}", figures | {"one_mask_ratio": mask / ours})


if __name__ == "__main__":
    main()
