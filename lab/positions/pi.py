"""Position interpolation: all rotations are slowed by one factor, so that longer texts fit the trained angles.

    inv_freq[j] = theta^(-2j / head_dim) / s,   s = target_len / train_len,   in radians per token

Source: Chen et al. 2023, arXiv:2306.15595; arXiv:2402.17463, section 2. The papers divide positions by s; here
positions stay integers and the frequencies are divided, which yields the same angles.
"""

from typing import Literal

from lab.positions.method import Extension, Tensor
from lab.positions.rope import Rope


class Pi(Extension):
    """Position interpolation's parameters."""

    method: Literal["pi"] = "pi"

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        """Divide RoPE's inverse frequencies by the factor: float64 (head_dim / 2,).

        Example:
            >>> Pi(factor=4.0).inv_freq(head_dim=4, theta=10000.0).tolist()
            [0.25, 0.0025]
        """
        return Rope().inv_freq(head_dim, theta) / self.factor
