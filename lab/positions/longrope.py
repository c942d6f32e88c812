"""LongRoPE: a factor of its own for each rotary pair, found by search, one set for short texts and one for long ones.

    inv_freq_j = theta^(-2j / d) / e_j     e = short_factor for texts of up to L tokens, else long_factor
    logit_factor  a^2 with a = sqrt(1 + ln s / ln L)       L = train_len,   s = factor = target_len / L

Source: arXiv:2402.13753, as the transformers library computes it (rope_type longrope, Phi-3). As with dynamic_ntk the
text's length is the number of tokens in the decoder's cache, and a packed row counts as short.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from lab.core.errors import ConfigError
from lab.core.schema import MOST, Positive, PositiveFloat
from lab.positions.method import Factor, FrequencyMethod, Tensor
from lab.positions.rope import Rope


@dataclass(frozen=True, kw_only=True)
class LongRope(FrequencyMethod):
    """LongRoPE's parameters."""

    scales_logits: ClassVar[bool] = True
    method: Literal["longrope"] = "longrope"
    short_factor: tuple[PositiveFloat, ...]
    """Factors e of the pairs in texts of up to train_len tokens."""
    long_factor: tuple[PositiveFloat, ...]
    """Factors e of the pairs in longer texts."""
    factor: Factor
    """Factor s = target_len / train_len, at least 1."""
    train_len: Annotated[int, Ge(2), Le(MOST)]
    """Pretraining length L in tokens."""
    attention_factor: PositiveFloat | None = None
    """Factor a on cos and sin, whose square multiplies the logits. Default: sqrt(1 + ln s / ln L)."""
    length: Positive | None = None
    """Tokens of the text. Default: those in the decoder's cache, and L for `inv_freq` itself."""

    def inv_freq(self, head_dim: int, theta: float) -> Tensor:
        """Divide RoPE's inverse frequencies by the factors for the length.

        Shapes: float64 (head_dim / 2,).
        Raises: ConfigError for another number of factors than pairs.
        Example:
            >>> both = {"short_factor": (1.0, 2.0), "long_factor": (1.0, 8.0)}
            >>> LongRope(**both, factor=4.0, train_len=100, length=101).inv_freq(head_dim=4, theta=10000.0).tolist()
            [1.0, 0.00125]
        """
        for name in ("short_factor", "long_factor"):
            if len(getattr(self, name)) != head_dim // 2:
                rule = f"must be {head_dim // 2}, half of head_dim; change them"
                raise ConfigError(f"{name}={len(getattr(self, name))} numbers: {rule}")
        factors = self.short_factor
        if (self.length or 0) > self.train_len:
            factors = self.long_factor
        plain = Rope().inv_freq(head_dim, theta)
        return plain / plain.new_tensor(factors)

    def logit_factor(self, q_pos: Tensor, layer: int) -> Tensor:
        # The factor is on cos and sin, which enter q.k through the query and through the key.
        a = self.attention_factor or math.sqrt(1 + math.log(self.factor) / math.log(self.train_len))
        return q_pos.double() * 0 + float(a) ** 2
