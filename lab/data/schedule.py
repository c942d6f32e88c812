"""Window schedule: tokens see only their block of the window, and blocks grow in training until they are the window.

    w(c) = min(L, w_s + floor((L - w_s) c / C))

with the window L, the first block w_s, the tokens c of all batches before, and C, those from which on the window is
whole.

    index in the window    0 1 2 3 4 5 6        blocks of w = 3    0 1 2 | 3 4 5 | 6
    documents              a a a a b b b        under the document mask    a a a | a | b | b b, cut at 3, 4 and 6

Every block is a run of its own, whose ids count from 0. Targets stay: the last token of a block predicts the next one.

Source: arXiv:2503.15450, section 4.1, which counts in steps t: min(w_e, w_s + floor(alpha t)) with w_s = 32. Its
alpha = 1/8 at L = 8192 and steps of 1M tokens is C = 65B here, of 100B tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.schema import Length, Positive, Section


@dataclass(frozen=True, kw_only=True)
class WindowSchedule(Section):
    """How the blocks of the window grow."""

    start: Length = 32
    """Tokens of the first blocks."""
    tokens: Positive
    """Consumed tokens from which on the window is whole."""

    def block(self, window: int, consumed: int) -> int:
        """Compute the tokens of a block.

        Example:
            >>> schedule = WindowSchedule(start=32, tokens=1000)
            >>> [schedule.block(192, consumed) for consumed in (0, 6, 7, 500, 999, 1000, 5000)]
            [32, 32, 33, 112, 191, 192, 192]
        """
        return min(window, self.start + (window - self.start) * consumed // self.tokens)
