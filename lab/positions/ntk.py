"""NTK-aware interpolation: a larger base slows the slowest pair by the factor and leaves the fastest unchanged.

    theta' = theta * s^(d / (d - 2)),   inv_freq[j] = theta'^(-2j / d),   s = target_len / train_len,   d = head_dim

The last pair, j = d/2 - 1, rotates s times slower; pair 0 rotates as before.

Source: bloc97 2023 (docs/sources.md); arXiv:2410.18745, section 4 (baseline). arXiv:2401.07004 prints the base without
s.
"""

from dataclasses import dataclass
from typing import Literal

from lab.errors import ConfigError
from lab.positions.method import Extension, Tensor
from lab.positions.rope import Rope


@dataclass(frozen=True, kw_only=True)
class Ntk(Extension):
    """NTK-aware interpolation's parameters."""

    method: Literal["ntk"] = "ntk"

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        return Rope().inv_freq(head_dim, scaled_theta(theta, self.factor, head_dim))


def scaled_theta(theta: float, factor: float, head_dim: int) -> float:
    """Compute theta * factor^(d / (d - 2)).

    Raises: ConfigError for a head of one pair, whose slowest pair is the fastest.
    Example:
        >>> round(scaled_theta(10000.0, 8.0, head_dim=8), 6)
        160000.0
    """
    if head_dim < 4:
        raise ConfigError(f"head_dim={head_dim}: must be >= 4 (the base grows by s^(d / (d - 2))); use method: pi")
    return theta * float(factor ** (head_dim / (head_dim - 2)))
