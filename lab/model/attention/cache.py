"""The key cache: keys and values of every layer, each key rotated once for every key map of the distance method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lab.model.attention.context import ContextGroup
from lab.model.attention.rotary import Rotation


class KeyCache:
    """Keys and values seen so far, preallocated for `max_tokens`.

    Keys are stored rotated, once for each of `n_maps` key maps: in every distance method a key's position depends only
    on its id. With `n_maps` 0 they are stored unrotated, for frequencies that depend on the length and for the
    reference. The next forward pass reads and fills `rows`. The ranks of a `context` group each hold the keys of their
    own heads.

    Shapes: `keys` (n_layers, max(n_maps, 1), B, K, max_tokens, H), `values` (n_layers, B, K, max_tokens, H). `length`
        tokens of them are filled.
    """

    def __init__(
        self,
        n_layers: int,
        batch: int,
        n_kv_heads: int,
        max_tokens: int,
        head_dim: int,
        device: torch.device,
        *,
        n_maps: int = 1,
        context: ContextGroup | None = None,
    ) -> None:
        own_heads = n_kv_heads if context is None else n_kv_heads // context.degree
        self.shape = (batch, own_heads, max_tokens, head_dim)
        self.context = context
        self.n_layers, self.n_maps = n_layers, n_maps
        self.device = device
        self.rows = slice(0, batch)
        self.length = 0
        self.layers: list[list[Tensor]] = []
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    @property
    def n_elements(self) -> int:
        """Count the numbers that a full cache holds."""
        batch, n_kv_heads, max_tokens, head_dim = self.shape
        return self.n_layers * (max(self.n_maps, 1) + 1) * batch * n_kv_heads * max_tokens * head_dim

    def extend(
        self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor, rotations: Sequence[Rotation], dtype: torch.dtype
    ) -> tuple[list[Tensor], Tensor]:
        """Append a layer's new keys, rotated once for each key map, and values, and return all of them.

        Without key maps the keys are stored unrotated. Call `advance` after the last layer.
        """
        *keys, values = self.layer(layer, dtype)
        n_new = v_BKTH.shape[2]
        stop = self.length + n_new
        assert stop <= self.shape[2], f"cache of {self.shape[2]} tokens cannot hold {stop}"
        if self.n_maps:
            for rotation, store in zip(rotations, keys, strict=True):
                rotation.rotate(k_BKTH, out=store.narrow(2, self.length, n_new))
        else:
            keys[0].narrow(2, self.length, n_new).copy_(k_BKTH)
        values.narrow(2, self.length, n_new).copy_(v_BKTH)
        return [store.narrow(2, 0, stop) for store in keys], values.narrow(2, 0, stop)

    def layer(self, number: int, dtype: torch.dtype) -> list[Tensor]:
        """Return a layer's keys, one tensor for each key map, and its values, (rows, K, max_tokens, H)."""
        if self.keys is None or self.values is None:  # autocast determines the dtype, which is not known before
            n_maps = max(self.n_maps, 1)
            self.keys = torch.empty(self.n_layers, n_maps, *self.shape, dtype=dtype, device=self.device)
            self.values = torch.empty(self.n_layers, *self.shape, dtype=dtype, device=self.device)
            self.layers = [[*keys, values] for keys, values in zip(self.keys.unbind(), self.values.unbind())]
        if self.rows == slice(0, self.shape[0]):
            return self.layers[number]
        return [store[self.rows] for store in self.layers[number]]

    def advance(self, n_tokens: int) -> None:
        """Count the tokens of a finished forward pass."""
        self.length += n_tokens

    def select(self, rows: slice, length: int) -> None:
        """Select the rows for the next forward pass, of which `length` tokens are filled."""
        self.rows, self.length = rows, length

    def repeat(self, row: int, rows: slice, length: int) -> None:
        """Copy the first `length` tokens of one row into others."""
        for store in self.stores():
            store[rows, :, :length] = store[row : row + 1, :, :length]

    def compact(self, kept: Tensor) -> None:
        """Keep some rows, moved to the front in ascending order, layer by layer to save memory.

        Shapes: kept int64 (n,).
        """
        for store in self.stores():
            store[: len(kept), :, : self.length] = store[kept, :, : self.length]
        self.rows = slice(0, len(kept))

    def stores(self) -> Iterator[Tensor]:
        """Iterate over the keys and values of every layer, (B, K, max_tokens, H)."""
        if self.keys is not None:
            yield from self.keys.flatten(0, 1)
        if self.values is not None:
            yield from self.values
