"""The longest context that a rotary base serves.

Below the base  theta(L) = 0.0424 L^1.628  attention to a random key outweighs attention to a similar one at distances
beyond L, so that a model retrieves less far however it is trained. Two windows at one base therefore differ in more
than the position frequency: theta = 10,000 serves 1,995 tokens, not 4,096.

Source: arXiv:2405.14591, Table 2 and its fit.
"""

from __future__ import annotations

FACTOR, EXPONENT = 0.0424, 1.628


def longest_context(theta: float) -> int:
    """Return the longest context in tokens that a rotary base serves.

    Example:
        >>> longest_context(10_000), longest_context(500_000)
        (1995, 22066)
    """
    return int((theta / FACTOR) ** (1 / EXPONENT))


def smallest_base(window: int) -> float:
    """Return the smallest rotary base that serves a context of `window` tokens."""
    return float(FACTOR * window**EXPONENT)


def base_warning(theta: float, window: int) -> str | None:
    """Return one line of warning where a rotary base does not serve the training window."""
    longest = longest_context(theta)
    if window <= longest * 1.05:  # the bound is a fit; TinyLlama's own 2,048 at 10,000 is within its error
        return None
    return (
        f"model.theta={theta:g}: serves {longest:,} tokens (arXiv:2405.14591), the window is {window:,}, so that "
        f"effective context may fall short because of the base alone; {smallest_base(window):,.0f} would serve it"
    )
