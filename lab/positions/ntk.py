"""NTK-aware interpolation: a larger base slows the slowest pair by the factor and leaves the fastest unchanged.

    theta' = theta * s^(d / (d - 2)),   inv_freq[j] = theta'^(-2j / d),   s = target_len / train_len,   d = head_dim

The last pair, j = d/2 - 1, rotates s times slower; pair 0 rotates as before.

Source: bloc97 2023 (docs/methods.md); arXiv:2410.18745, section 4 (baseline). arXiv:2401.07004 prints the base without
s.

Dynamic NTK: the NTK-aware base for the current length of the text, plain RoPE up to the trained length.

    theta' = theta * (s * l / L - (s - 1))^(d / (d - 2)),   l = max(length, L),   L = train_len

Source: emozilla 2023 (docs/methods.md); arXiv:2401.07004, section 2 (baseline). Without `length` the decoder uses the
number of tokens in its cache, and rotates all cached keys again at every step; code that caches rotated keys would mix
bases. A packed row has no single length and uses L, so that no document depends on the others in the row.
"""

from dataclasses import dataclass
from typing import Literal

from lab.core.errors import ConfigError
from lab.core.schema import Positive
from lab.positions.method import Extension, Factor, FrequencyMethod, Tensor
from lab.positions.rope import Rope


@dataclass(frozen=True, kw_only=True)
class Ntk(Extension):
    """NTK-aware interpolation's parameters."""

    method: Literal["ntk"] = "ntk"

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        return Rope().inv_freq(head_dim, scaled_theta(theta, self.factor, head_dim))


@dataclass(frozen=True, kw_only=True)
class DynamicNtk(FrequencyMethod):
    """Dynamic NTK's parameters."""

    method: Literal["dynamic_ntk"] = "dynamic_ntk"
    factor: Factor
    """Factor s, at least 1, by which the base grows with the length (transformers' name; s in the equation)."""
    train_len: Positive
    """Pretraining length L in tokens, up to which nothing changes."""
    length: Positive | None = None
    """Tokens of the text. Default: those in the decoder's cache, and L for `inv_freq` itself."""

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        """Compute RoPE's inverse frequencies at the base for the length: float64 (head_dim / 2,)."""
        length = max(self.length or 0, self.train_len)
        # s l / L - (s - 1) in a form that is exactly 1 up to the trained length.
        growth = 1 + self.factor * (length - self.train_len) / self.train_len
        return Rope().inv_freq(head_dim, scaled_theta(theta, growth, head_dim))


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
