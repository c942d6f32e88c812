"""The key cache: keys and values of every layer, each key rotated once for every key map of the distance method."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KeyCache:
    """Keys and values seen so far, preallocated for `max_tokens`.

    Keys are kept rotated, `n_maps` times over: a key's place depends on its own id alone in every distance method.
    With `n_maps` 0 they are kept as they are, for frequencies that follow the length and for the reference.

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
    ) -> None:
        self.shape = (batch, n_kv_heads, max_tokens, head_dim)
        self.n_layers, self.n_maps = n_layers, n_maps
        self.device = device
        self.length = 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def extend(self, layer: int, keys: Sequence[Tensor], v_BKTH: Tensor) -> tuple[list[Tensor], Tensor]:
        """Append a layer's new keys, one tensor per key map, and values, and return all of them.

        `advance` moves on after the last layer.
        """
        if self.keys is None or self.values is None:  # the dtype is known only now: autocast decides it
            self.keys = torch.empty(self.n_layers, len(keys), *self.shape, dtype=keys[0].dtype, device=self.device)
            self.values = torch.empty(self.n_layers, *self.shape, dtype=v_BKTH.dtype, device=self.device)
        stop = self.length + v_BKTH.shape[2]
        assert stop <= self.shape[2], f"cache of {self.shape[2]} tokens asked to hold {stop}"
        for number, k_BKTH in enumerate(keys):
            self.keys[layer, number, :, :, self.length : stop] = k_BKTH
        self.values[layer, :, :, self.length : stop] = v_BKTH
        return [k[:, :, :stop] for k in self.keys[layer]], self.values[layer, :, :, :stop]

    def advance(self, n_tokens: int) -> None:
        """Count the tokens of a finished forward pass."""
        self.length += n_tokens
