"""The key cache: keys and values of every layer, each key rotated once for every key map of the distance method."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lab.model.attention.context import ContextGroup
from lab.model.attention.layout import Rotation
from lab.model.config import DecoderConfig


class KeyCache:
    """Keys and values seen so far, preallocated for `max_tokens`.

    Keys are stored rotated, once for each of `n_maps` key maps: in every distance method a key's position depends only
    on its id. With `n_maps` 0 they are stored unrotated, for frequencies that depend on the length and for the
    reference. The next forward pass reads and fills `rows`. The ranks of a `context` group each hold the keys of their
    own heads.

    Shapes: `store` (n_layers, keys of each map and values, B, K, max_tokens, H). `length` tokens of it are filled.
    """

    def __init__(
        self,
        cfg: DecoderConfig,
        batch: int,
        max_tokens: int,
        device: torch.device,
        *,
        n_maps: int,
        context: ContextGroup | None,
    ) -> None:
        own_heads = cfg.n_kv_heads // (1 if context is None else context.degree)
        self.shape = (cfg.n_layers, max(n_maps, 1) + 1, batch, own_heads, max_tokens, cfg.head_dim)
        self.device = device
        self.n_maps = n_maps
        self.context = context
        self.rows = slice(0, batch)
        self.length = 0
        self.store: Tensor | None = None  # autocast determines the dtype, which is not known before the first pass

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    def extend(
        self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor, rotations: Sequence[Rotation], dtype: torch.dtype
    ) -> tuple[list[Tensor], Tensor]:
        """Append a layer's new keys, rotated once for each key map, and values, and return all of them."""
        if self.store is None:
            self.store = torch.empty(self.shape, dtype=dtype, device=self.device)
        stop = self.length + v_BKTH.shape[2]
        assert stop <= self.shape[4], f"cache of {self.shape[4]} tokens cannot hold {stop}"
        turned = [rotation.rotate(k_BKTH) for rotation in rotations] if self.n_maps else [k_BKTH]
        used = slice(0, len(turned) + 1)  # layers of some kinds have fewer maps
        *keys, values = self.store[layer, used, self.rows, :, :stop].unbind()
        for stored, new in zip([*keys, values], [*turned, v_BKTH], strict=True):
            stored[:, :, self.length :] = new
        return keys, values

    def select(self, rows: slice, length: int) -> None:
        """Select the rows for the next forward pass, of which `length` tokens are filled."""
        self.rows = rows
        self.length = length

    def repeat(self, length: int) -> None:
        """Copy the first `length` tokens of the first row into the others."""
        assert self.store is not None, "filled"
        self.store[:, :, 1:, :, :length] = self.store[:, :, :1, :, :length]

    def compact(self, kept: Tensor) -> None:
        """Keep some rows, int64 (n,), moved to the front in ascending order, layer by layer to save memory."""
        assert self.store is not None, "filled"
        for part in self.store.flatten(0, 1):
            part[: len(kept), :, : self.length] = part[kept, :, : self.length]
        self.rows = slice(0, len(kept))
