"""RULER's two scores of an answer, and the interval of a mean score.

    all parts = (expected strings that stand in the answer) / (expected strings)
    any part  = 1 if one of the expected strings stands in the answer, else 0

Upper and lower case are the same, and a string stands in an answer wherever it is a part of it, whole word or not.
Control characters of an answer become line breaks first. Question answering takes any part, all other tasks all parts.

Source: Hsieh et al. 2024, section 3; NVIDIA/RULER, scripts/eval/evaluate.py and scripts/eval/synthetic/constants.py.
lm-eval 0.4.13 has another `any part` (it divides by the number of expected strings); this one is RULER's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

CONTROL = re.compile(r"[\x00-\x1f]")
Z = 1.959964  # of a two-sided interval of 95%


def clean(answer: str) -> str:
    r"""Make an answer ready to be scored.

    Example:
        >>> clean(" 12\x00 34\t")
        '12\n 34'
    """
    return CONTROL.sub("\n", answer.strip()).strip()


def all_parts(answer: str, expected: Sequence[str]) -> float:
    """Score the share of the expected strings that stand in the answer.

    Example:
        >>> all_parts("ABC, then abd", ["abc", "ABD", "XYZ", "QRS"])
        0.5
    """
    return sum(part.lower() in answer.lower() for part in expected) / len(expected)


def any_part(answer: str, expected: Sequence[str]) -> float:
    """Score 1 where one of the expected strings stands in the answer.

    Example:
        >>> any_part("In Denver, Colorado.", ["Boulder", "denver"]), any_part("In Denver", ["Boulder"])
        (1.0, 0.0)
    """
    return float(any(part.lower() in answer.lower() for part in expected))


def interval(mean: float, n: int) -> tuple[float, float]:
    """Give the 95% interval of a mean of `n` scores between 0 and 1.

    Wilson's; exact in kind for scores of 0 or 1, wider than need be for shares, whose variance is at most p (1 - p).

    Example:
        >>> [round(bound, 4) for bound in interval(0.5, 10)]
        [0.2366, 0.7634]
    """
    middle = (mean + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(mean * (1 - mean) / n + Z**2 / (4 * n**2))
    return max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half))  # rounding aside
