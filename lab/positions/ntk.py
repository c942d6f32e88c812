"""Methods with a larger rotary base: NTK-aware interpolation, dynamic NTK, ABF, entropy-aware ABF.

NTK-aware interpolation: a larger base slows the slowest pair by the factor and leaves the fastest unchanged.

    theta' = theta * s^(d / (d - 2)),   inv_freq[j] = theta'^(-2j / d),   s = target_len / train_len,   d = head_dim

The last pair, j = d/2 - 1, rotates s times slower; pair 0 rotates as before.

Source: bloc97 2023 (docs/methods.md); arXiv:2410.18745, section 4 (baseline). arXiv:2401.07004 prints the base without
s.

Dynamic NTK: the NTK-aware base for the current length of the text, plain RoPE up to the trained length.

    theta' = theta * (s * l / L - (s - 1))^(d / (d - 2)),   l = max(length, L),   L = train_len

Source: emozilla 2023 (docs/methods.md); arXiv:2401.07004, section 2 (baseline). Without `length` the decoder uses the
number of tokens in its cache, and rotates all cached keys again at every step; code that caches rotated keys would mix
bases. A packed row has no single length and uses L, so that no document depends on the others in the row.

Adjusted base frequency: RoPE with a larger base, so that rotations over long distances are slower.

    inv_freq[j] = theta^(-2j / head_dim),   theta = 500,000 instead of 10,000

Source: Xiong et al. 2023, arXiv:2309.16039; arXiv:2401.07004, section 3.

Entropy-aware ABF: the same base, and logits that grow with the logarithm of the number of visible tokens.

    logit_factor(p) = max(1, ln(p + 1) / ln L)  in layers 2 and up, 1 in layers 0 and 1

p is the 0-based position of the query, which sees p + 1 tokens, and L the pretraining length (`train_len`): beyond L,
attention entropy then stays at the level of training.

Source: arXiv:2401.07004, section 3; one sentence there has 50,000, its Table 1 and the code 500,000. In the released
code the exemption of the first layers never takes effect and the length is 4096 for every model; the exemption here
takes effect, and `exempt_layers=0` is the code's behaviour.
"""

import math
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from lab.core.errors import ConfigError
from lab.core.schema import NonNegative, Positive, PositiveFloat
from lab.positions.method import Extension, Factor, FrequencyMethod, Tensor
from lab.positions.rope import Rope


class Ntk(Extension):
    """NTK-aware interpolation's parameters."""

    method: Literal["ntk"] = "ntk"

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        return Rope().inv_freq(head_dim, scaled_theta(theta, self.factor, head_dim))


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
        beyond = max((self.length or 0) - self.train_len, 0)
        # s l / L - (s - 1) in a form that is exactly 1 up to the trained length.
        growth = 1 + self.factor * beyond / self.train_len
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


class AdjustedBase(FrequencyMethod):
    """The base and inverse frequencies that ABF and entropy-aware ABF share."""

    theta: PositiveFloat = 500_000.0
    """Rotary base, which replaces the model's own and must be larger."""

    def base(self, theta: float) -> float:
        return self.theta

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        """Compute RoPE's inverse frequencies at the base in use: float64 (head_dim / 2,)."""
        return Rope().inv_freq(head_dim, theta)


class Abf(AdjustedBase):
    """The adjusted base."""

    method: Literal["abf"] = "abf"


class EntropyAbf(AdjustedBase):
    """Entropy-aware ABF's parameters."""

    scales_logits: ClassVar[bool] = True
    method: Literal["entropy_abf"] = "entropy_abf"
    train_len: Annotated[int, Ge(2)]
    """Pretraining length L in tokens, at least 2; queries that see more are sharpened by ln(p + 1) / ln L."""
    exempt_layers: NonNegative = 2
    """First layers whose logits are not scaled; the paper exempts 2."""

    def logit_factor(self, q_pos: Tensor, layer: int) -> Tensor:
        """Compute the factor of queries in one layer, float64 like `q_pos`.

        Example:
            >>> import torch
            >>> EntropyAbf(train_len=16).logit_factor(torch.tensor([0, 15, 255]), layer=2).tolist()
            [1.0, 1.0, 2.0]
            >>> EntropyAbf(train_len=16).logit_factor(torch.tensor([255]), layer=1).tolist()
            [1.0]
        """
        if layer < self.exempt_layers:
            return q_pos.double() * 0 + 1
        return ((q_pos.double() + 1).log() / math.log(self.train_len)).clamp(min=1.0)
