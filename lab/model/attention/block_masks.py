"""The blocks of the attention matrix that flex attention visits, computed without storing the matrix.

torch's create_block_mask stores all Tq x Tk pairs, several times over. Here a few rows of blocks are counted at a time;
many rows on a GPU are counted by a compiled function, which stores no pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lab.model.attention import devices
from lab.model.attention.layout import Layout
from lab.model.attention.visibility import Visibility
from lab.positions import Band

Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
BLOCK = 128  # queries and keys of a block, flex attention's default
PAIRS = 1 << 26  # pairs stored at a time


def block_mask(layout: Layout, number: int, band: Band, batch: int) -> Any:
    """Build a band's mask, once per layout for all layers."""
    masks = layout.cache
    if number not in masks:
        assert isinstance(layout.visible, Visibility), "transformers' own masks run under auto, which never takes flex"
        visible, q_pos, k_pos = layout.visible, torch.atleast_2d(layout.q_pos), torch.atleast_2d(layout.k_pos)

        def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            positions = (x[b if len(x) > 1 else b * 0, place] for x, place in ((q_pos, q), (k_pos, k)))
            return visible.sees(b, q, k) & band.region.contains(*positions)

        rows = batch if max(visible.rows, len(q_pos), len(k_pos)) > 1 else 1
        masks[number] = mask_of(sees, rows, visible.n_q, visible.n_k, visible.device)
    return masks[number]


def mask_of(sees: Sees, rows: int, n_q: int, n_k: int, device: torch.device) -> Any:
    """Sort blocks into partly visible ones, which the kernel evaluates pair by pair, and fully visible ones."""
    from torch.nn.attention.flex_attention import BlockMask

    counts = visible_pairs(sees, rows, n_q, n_k, device)
    full = counts == BLOCK * BLOCK
    return BlockMask.from_kv_blocks(
        *ordered((counts > 0) & ~full), *ordered(full), BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(n_q, n_k)
    )


def visible_pairs(sees: Sees, rows: int, n_q: int, n_k: int, device: torch.device) -> Tensor:
    """Count the visible pairs of every block, int32 (rows, 1, blocks of queries, blocks of keys)."""
    n_blocks = -(-n_q // BLOCK)
    at_once = max(1, PAIRS // (rows * BLOCK * n_k))
    count = count_pairs if devices.kind(device) != "cuda" or at_once >= n_blocks else compiled_count()
    starts = range(0, n_blocks, at_once)
    parts = [count(sees, rows, (start, min(start + at_once, n_blocks)), n_q, n_k, device) for start in starts]
    return torch.cat(parts, dim=1)[:, None]


def count_pairs(sees: Sees, rows: int, blocks: tuple[int, int], n_q: int, n_k: int, device: torch.device) -> Tensor:
    """Count the visible pairs of some rows of blocks; places past the last token count as hidden."""
    b = torch.arange(rows, device=device)[:, None, None]
    q = torch.arange(blocks[0] * BLOCK, blocks[1] * BLOCK, device=device)[None, :, None]
    k = torch.arange(-(-n_k // BLOCK) * BLOCK, device=device)[None, None, :]
    seen = sees(b, b * 0, q.clamp(max=n_q - 1), k.clamp(max=n_k - 1)) & (q < n_q) & (k < n_k)
    blocks_of_pairs: Tensor = seen.expand(rows, -1, -1).unflatten(2, (-1, BLOCK)).unflatten(1, (-1, BLOCK))
    return blocks_of_pairs.sum((2, 4), dtype=torch.int32)


@cache
def compiled_count() -> Callable[..., Tensor]:
    """Compile the count, once in a process."""
    return torch.compile(count_pairs)


def ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's number of set blocks, and the indices of all blocks, set ones first and ascending, int32."""
    places = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), places.int()
