"""The key cache: un-rotated keys and values of every layer, so that a distance method may place them anew."""

from __future__ import annotations

import torch
from torch import Tensor


class KeyCache:
    """Keys and values seen so far, preallocated for `max_tokens`.

    Shapes: `keys` and `values` (n_layers, B, K, max_tokens, H). `length` tokens of them are filled.
    """

    def __init__(
        self, n_layers: int, batch: int, n_kv_heads: int, max_tokens: int, head_dim: int, device: torch.device
    ) -> None:
        self.shape = (n_layers, batch, n_kv_heads, max_tokens, head_dim)
        self.device = device
        self.length = 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def extend(self, layer: int, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Append a layer's new keys and values and return all of them; `advance` moves on after the last layer."""
        if self.keys is None or self.values is None:  # the dtype is known only now: autocast decides it
            self.keys = torch.empty(self.shape, dtype=k_BKTH.dtype, device=self.device)
            self.values = torch.empty(self.shape, dtype=v_BKTH.dtype, device=self.device)
        stop = self.length + k_BKTH.shape[2]
        assert stop <= self.shape[3], f"cache of {self.shape[3]} tokens asked to hold {stop}"
        self.keys[layer, :, :, self.length : stop] = k_BKTH
        self.values[layer, :, :, self.length : stop] = v_BKTH
        return self.keys[layer, :, :, :stop], self.values[layer, :, :, :stop]

    def advance(self, n_tokens: int) -> None:
        """Count the tokens of a finished forward pass."""
        self.length += n_tokens
