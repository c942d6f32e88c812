"""Rotating queries and keys by their positions. Axes: B batch, T tokens, N heads, H per head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lab.model.attention import devices


@dataclass(frozen=True, eq=False)
class Rotation:
    """Cosines and sines of position * inv_freq, (B or 1, 1, T, H/2), computed once per forward pass for all layers."""

    cos_B1TH: Tensor
    sin_B1TH: Tensor

    @classmethod
    def of(cls, positions: Tensor, inv_freq: Tensor, dtype: torch.dtype) -> Rotation:
        """Compute angles in float64 and round cos and sin once to `dtype` (float32 or wider).

        Shapes: `positions` (T,) or (B, T), `inv_freq` (H/2,).
        """
        positions = positions if positions.ndim == 2 else positions[None]
        angles = positions[:, None, :, None].double() * devices.moved(inv_freq, positions.device)
        return cls(angles.cos().to(dtype), angles.sin().to(dtype))

    def rotate(self, x_BNTH: Tensor, out: Tensor | None = None) -> Tensor:
        """Rotate the pair (j, j + H/2) of each head by its angle, in the rotation's precision, into `out` if given."""
        x_BNTH = x_BNTH.to(self.cos_B1TH.dtype)
        first, second = x_BNTH.chunk(2, dim=-1)
        cos, sin = self.cos_B1TH, self.sin_B1TH
        if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return rotated_in_place(first, second, cos, sin, out)
        rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        return rotated if out is None else out.copy_(rotated)

    def rotate_back(self, x_BNTH: Tensor) -> Tensor:
        """Rotate every pair by the negative angle, for the backward pass."""
        return Rotation(self.cos_B1TH, -self.sin_B1TH).rotate(x_BNTH)

    def by_token(self) -> Rotation:
        """Return the rotation of (B, T, N, H)."""
        return Rotation(self.cos_B1TH.transpose(1, 2), self.sin_B1TH.transpose(1, 2))

    def at(self, part: slice) -> Rotation:
        """Return the rotation of some of the tokens."""
        return Rotation(self.cos_B1TH[:, :, part], self.sin_B1TH[:, :, part])


def rotated_in_place(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor, out: Tensor | None) -> Tensor:
    """Rotate the halves of each head without gradients or temporaries, which are the main cost on CPUs.

    Shapes: first, second (B, N, T, H/2); cos, sin (B or 1, 1, T, H/2), of one dtype; returns (B, N, T, H).
    """
    batch, heads, n_tokens, half = first.shape
    if out is None or out.dtype != cos.dtype:
        rotated = first.new_empty(max(batch, cos.shape[0]), heads, n_tokens, 2 * half)
    else:
        rotated = out
    out_first, out_second = rotated.chunk(2, dim=-1)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin)
    return rotated if out is None or out is rotated else out.copy_(rotated)
