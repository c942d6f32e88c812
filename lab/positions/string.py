"""STRING: the well-trained small relative positions replace the rarely trained large ones.

    rel_pos(m, n) = i               for i < S       with i = m - n, in tokens
                    i - S + W       for i >= S

S is the shift and W the local window. A text of L tokens then uses relative positions up to L - 1 - S + W instead of
L - 1. The W nearest tokens keep distances that no far token takes. The last row at L = 9, S = 3, W = 0:

    plain    8 7 6 5 4 3 2 1 0
    STRING   5 4 3 2 1 0 2 1 0

Source: arXiv:2410.18745, section 4 and A.1. Eq. 3 and 4 print the condition as m >= n - S, true of every causal pair;
it means m - n >= S. The authors' prefill counts distance S in both bands; their decoding and this file do not. They
also multiply cos and sin by 0.1 ln 2 + 1 for STRING alone, which the paper does not mention: `released_scaling`, off.
"""

import math
from collections.abc import Iterator
from typing import ClassVar, Literal

from lab.core.schema import NonNegative, Positive
from lab.positions.method import Band, Distance, Tensor, differences, identity
from lab.positions.regions import Far, Near

WINDOW = 128  # W of all models in the paper


class String(Distance):
    """STRING's parameters."""

    limit: ClassVar[str] = "shift"
    beyond_training: ClassVar[bool] = False
    method: Literal["string"] = "string"
    shift: Positive
    """Shift S in tokens, by the paper L/3 <= S <= L/2 for the training length L. Default: L/3."""
    window: NonNegative = WINDOW
    """Local window W in tokens; the paper uses 128 and allows W >= 32, far below S. Default: at most L/6."""
    released_scaling: bool = False
    """Whether logits are scaled as the authors' code does, by (0.1 ln 2 + 1)^2."""

    def rules(self) -> Iterator[str]:
        """Require the window to lie within the shift, so that no relative position grows."""
        if self.window > self.shift:
            yield self.format_error(
                "window", f"must be <= shift={self.shift} (the paper has W << S, W = 128); lower window"
            )

    @property
    def longest_plain(self) -> int:
        return self.shift

    @property
    def constant_factor(self) -> float:
        # On the logits. The released factor is on cos and sin, which enter them through the query and through the key.
        return (0.1 * math.log(2) + 1) ** 2 if self.released_scaling else 1.0

    def rel_pos(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Reduce the distances from S on by S - W: (Tq,), (Tk,) -> float64 (Tq, Tk)."""
        i = differences(q_pos, k_pos)
        return i - (i >= self.shift) * (self.shift - self.window)

    @property
    def bands(self) -> tuple[Band, ...]:
        shift, back = self.shift, self.shift - self.window
        return (Band(Near(shift), identity, identity), Band(Far(shift), lambda m: m - back, identity))
