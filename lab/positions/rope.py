"""RoPE: rotary position embedding, on which all other frequency methods build; and plain distance.

    inv_freq[j] = theta^(-2j / head_dim),   j = 0 .. head_dim/2 - 1,   in radians per token

Dimensions j and j + head_dim/2 form the pair that is rotated by position * inv_freq[j] (half-split pairing, used in the
whole project). Source: Su et al. 2021, arXiv:2104.09864; arXiv:2410.18745, section 2.1.

A rotary base serves a limited context. Below the base  theta(L) = 0.0424 L^1.628  attention to a random key outweighs
attention to a similar one at distances beyond L. A model then retrieves less far however it is trained. Two windows at
one base therefore differ in more than the position frequency: theta = 10,000 serves 1,995 tokens, not 4,096.
Source: arXiv:2405.14591, Table 2 and its fit.

Plain distance: attention uses the distance between query and key unchanged, as RoPE by itself does.

    rel_pos(m, n) = m - n,   in tokens

Source: STRING, arXiv:2410.18745, Eq. 1.
"""

from typing import Literal

from lab.positions.method import Band, Distance, FrequencyMethod, Tensor, differences, identity
from lab.positions.regions import Far


class Rope(FrequencyMethod):
    """RoPE, which has no parameters except `model.theta`."""

    method: Literal["rope"] = "rope"

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        """Compute the inverse frequencies: float64 (head_dim / 2,).

        Example:
            >>> Rope().inv_freq(head_dim=4, theta=10000.0).tolist()
            [1.0, 0.01]
        """
        # Imported here, so that settings are checked before torch loads.
        import torch

        j = torch.arange(head_dim // 2, dtype=torch.float64)
        return torch.tensor(theta, dtype=torch.float64) ** (-2.0 * j / head_dim)


class Plain(Distance):
    """Plain distance, which has no parameters of its own."""

    method: Literal["plain"] = "plain"

    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Subtract every key position from every query position: (Tq,), (Tk,) -> float64 (Tq, Tk)."""
        return differences(q_pos, k_pos)

    @property
    def bands(self) -> tuple[Band, ...]:
        return (Band(Far(0), identity, identity),)


def longest_context(theta: float) -> int:
    """Return the longest context in tokens that a rotary base serves.

    Example:
        >>> longest_context(10_000), longest_context(500_000)
        (1995, 22066)
    """
    return int((theta / 0.0424) ** (1 / 1.628))


def base_warning(theta: float, window: int) -> str | None:
    """Return one line of warning where a rotary base does not serve the training window."""
    longest = longest_context(theta)
    # The bound is a fit. TinyLlama's own 2,048 at 10,000 is within its error.
    if window <= longest * 1.05:
        return None
    return (
        f"model.theta={theta:g}: serves {longest:,} tokens (arXiv:2405.14591), the window is {window:,}, so that "
        f"effective context may fall short because of the base alone; {0.0424 * window**1.628:,.0f} would serve it"
    )
