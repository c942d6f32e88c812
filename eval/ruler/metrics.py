"""RULER's two scores of an answer, and the interval of a mean score.

    all parts = (expected strings that occur in the answer) / (expected strings)
    any part  = 1 if one of the expected strings occurs in the answer, else 0

Upper and lower case are the same, and a string occurs in an answer wherever it is a part of it, whole word or not.
Control characters of an answer become line breaks first. Question answering takes any part, all other tasks all parts.

Source: Hsieh et al. 2024, section 3; NVIDIA/RULER, scripts/eval/evaluate.py and scripts/eval/synthetic/constants.py.
lm-eval 0.4.13 has another `any part` (it divides by the number of expected strings); this one is RULER's.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence

from scipy.special import ndtri  # scipy.stats takes half a second more to import

from eval.engine.answers import Outcome
from eval.engine.rows import Row

CONTROL = re.compile(r"[\x00-\x1f]")
CONFIDENCE = 0.95
ROUNDING = 9  # decimals of a sum of scores, which adds up halves and thirds


def clean(answer: str) -> str:
    r"""Prepare an answer for scoring.

    Example:
        >>> clean(" 12\x00 34\t")
        '12\n 34'
    """
    return CONTROL.sub("\n", answer.strip()).strip()


def all_parts(answer: str, expected: Sequence[str]) -> float:
    """Score the share of the expected strings that occur in the answer.

    Example:
        >>> all_parts("ABC, then abd", ["abc", "ABD", "XYZ", "QRS"])
        0.5
    """
    return sum(part.lower() in answer.lower() for part in expected) / len(expected)


def any_part(answer: str, expected: Sequence[str]) -> float:
    """Score 1 where one of the expected strings occurs in the answer.

    Example:
        >>> any_part("In Denver, Colorado.", ["Boulder", "denver"]), any_part("In Denver", ["Boulder"])
        (1.0, 0.0)
    """
    return float(any(part.lower() in answer.lower() for part in expected))


def interval(scores: Sequence[float]) -> tuple[float, float]:
    """Return Wilson's 95% interval of the mean of scores between 0 and 1.

    Of partial scores, whose variance is at most that of scores of 0 and 1 with the same mean, the sum is rounded down
    for the lower limit and up for the upper one.

    Example:
        >>> [round(limit, 4) for limit in interval([1.0] * 5 + [0.0] * 5)]
        [0.2366, 0.7634]
        >>> [round(limit, 4) for limit in interval([0.5] * 9 + [0.0])]  # 4 and 5 of 10
        [0.1682, 0.7634]
    """
    total = round(sum(scores), ROUNDING)
    n, z = len(scores), float(ndtri((1 + CONFIDENCE) / 2))
    ends = []
    for passed, side in ((math.floor(total), -1), (math.ceil(total), 1)):
        spread = z * math.sqrt(4 * passed * (n - passed) / n + z**2)
        ends.append((2 * passed + z**2 + side * spread) / (2 * (n + z**2)))
    return max(0.0, ends[0]) if total >= 1 else 0.0, min(1.0, ends[1]) if total <= n - 1 else 1.0


def summed(outcome: Outcome) -> Row:
    """Sum the tests of a task at one length up: their mean score in percent, its interval, and what tests were like.

    The standard deviation is over tests, None of a single one; examples and made-up words are counted where there are.
    """
    records, scores = outcome.records, [float(record["score"]) for record in outcome.records]
    mean = sum(scores) / len(scores)
    low, high = interval(scores)
    std = 100 * statistics.stdev(scores) if len(scores) > 1 else None
    row = {"score": 100 * mean, "low": 100 * low, "high": 100 * high, "std": std, "seconds": outcome.seconds}
    counted = (("examples", "example"), ("made_up_words", "made_up_words"))
    counts = {name: sum(record[each] for record in records) for name, each in counted if each in records[0]}
    return {**row, "shortest_prompt": min(record["prompt_tokens"] for record in records), **counts}
