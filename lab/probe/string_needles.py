"""The four-needle test of arXiv:2410.18745 (section 3, Table 5), for comparison with its numbers.

It differs from `lab.probe.needles`, the lab's own, in that
- white space is as Table 5 prints it: blanks after the line ends, and a line end before the answer's first words;
- every test hides the four numbers of Table 5, in its order, and starts at the beginning of the haystack, so that the
  tests of a length differ in their depths only;
- a needle may be at any token, not only at the beginning of a word;
- a number counts wherever its digits occur, also inside a longer number.

Wording, numbers and the pass rule are the paper's; one needle in each quarter of the first 99% and the counting of
numbers are those of the released script, whose own prompts `lab.probe.released_needles` writes. The exact length, with
the answer, is ours.
"""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer

from lab.data import wording
from lab.errors import DataError
from lab.probe.needles import DEPTH_RANGE, NeedleCase, compose, fill, plain_ids

SUMMARY = "Table 5's numbers in every test, haystack from its beginning, exact length, digits count anywhere"
NUMBERS = ("144231", "543171", "264468", "423103")
DIGITS = 6
QUESTION = "\n\n What are the magic numbers mentioned in the provided text?\n The numbers are"


def make_case(
    tokenizer: Tokenizer,
    haystack: str,
    length: int,
    answer_budget: int,
    generator: np.random.Generator,
    *,
    digits: int = DIGITS,
    needles: int = len(NUMBERS),
) -> NeedleCase:
    """Draw one test of exactly `length` tokens, of which the last `answer_budget` are left for the answer.

    Needle k is at a uniformly drawn token of the k-th quarter of the haystack's first 99%.

    Raises: DataError where `length` has no room for the fixed parts, or the haystack is empty.
    """
    head, planted, tail = fixed_parts(tokenizer, digits, needles)
    fixed = len(head) + sum(map(len, planted)) + len(tail) + answer_budget
    if length < fixed + needles:
        raise DataError(
            f"length={length}: too short for the needle test; task, {needles} needles, question and answer_budget="
            f"{answer_budget} take {fixed} tokens, so use {fixed + needles} or more"
        )
    _, encoding = fill(tokenizer, haystack, length - fixed, len(haystack))  # from the blank before its second copy
    hay = encoding.ids[: length - fixed]
    depths = (np.arange(needles) + generator.random(needles)) * DEPTH_RANGE / needles
    places = [int(depth * len(hay)) for depth in depths]
    return compose(tokenizer, list(NUMBERS), hay, places, (head, planted, tail))


def fixed_parts(tokenizer: Tokenizer, digits: int, needles: int) -> tuple[list[int], list[list[int]], list[int]]:
    """Encode the parts of every case beside the haystack; the blank after the task line belongs to the haystack."""
    assert (digits, needles) == (DIGITS, len(NUMBERS)), "the config refuses others"
    planted = [plain_ids(tokenizer, wording.NEEDLE.format(number=number)) for number in NUMBERS]
    return tokenizer.encode(wording.TASK).ids, planted, plain_ids(tokenizer, QUESTION)


def shortest(tokenizer: Tokenizer, answer_budget: int, *, digits: int, needles: int, seed: int) -> int:
    """Count the tokens of the shortest case: all fixed parts and one token of haystack per needle."""
    head, planted, tail = fixed_parts(tokenizer, digits, needles)
    return len(head) + sum(map(len, planted)) + len(tail) + needles + answer_budget


def found(text: str, numbers: list[str]) -> int:
    """Count how many of the numbers are in the text, also inside longer ones.

    Example:
        >>> found("The numbers are 12, 345 and 6789.", ["12", "345", "678"])
        3
    """
    return sum(number in text for number in numbers)
