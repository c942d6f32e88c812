"""The four-needle test of arXiv:2410.18745 (section 3, Table 5), for comparison with its numbers.

It differs from `lab.probe.needles`, the lab's own, in that
- white space is as Table 5 prints it: blanks after the line ends, and a line end before the answer's first words;
- every test hides the four numbers of Table 5, in its order, and starts at the beginning of the haystack, so that the
  tests of a length differ in their depths only;
- a needle may be at any token, not only at the beginning of a word;
- `length` is the prompt without the answer, and the haystack ends with a sentence or a line: the prompt exceeds its
  length by less than one of these, and the answer is not included;
- a number counts wherever its digits occur, also inside a longer number.

Wording, numbers and the pass rule are the paper's; one needle in each quarter of the first 99%, the excess length and
the counting of numbers are those of the released script, whose pieces of text are sentences and lines here.
"""

from __future__ import annotations

import re

import numpy as np
from tokenizers import Tokenizer

from lab.data import wording
from lab.errors import DataError
from lab.probe.needles import CHARS_PER_TOKEN, DEPTH_RANGE, NeedleCase, compose, plain_ids

SUMMARY = "Table 5's numbers in every test, haystack from its beginning, length overshot, digits count anywhere"
NUMBERS = ("144231", "543171", "264468", "423103")
DIGITS = 6
QUESTION = "\n\n What are the magic numbers mentioned in the provided text?\n The numbers are"
SENTENCE_END = re.compile(r"[.?!\n]+")


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
    """Draw one test whose prompt has `length` tokens, or more to the end of a sentence or line, without the answer.

    Needle k is at a uniformly drawn token of the k-th quarter of the haystack's first 99%.

    Raises: DataError where `length` has no room for the fixed parts, or the haystack is empty.
    """
    head, planted, tail = fixed_parts(tokenizer, digits, needles)
    fixed = len(head) + sum(map(len, planted)) + len(tail)
    if length < fixed + needles:
        raise DataError(
            f"length={length}: too short for the needle test; task, {needles} needles and question take {fixed} "
            f"tokens, so use {fixed + needles} or more"
        )
    hay = whole_sentences(tokenizer, haystack, length - fixed)
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
    return len(head) + sum(map(len, planted)) + len(tail) + needles


def whole_sentences(tokenizer: Tokenizer, haystack: str, n_tokens: int) -> list[int]:
    """Return `n_tokens` tokens from the beginning of the haystack, and more to the end of the sentence or line.

    The haystack starts again after its end. Raises: DataError for an empty haystack.
    """
    if not haystack.strip():
        raise DataError("haystack: empty; give a text file with words in it")
    piece_end = SENTENCE_END if SENTENCE_END.search(haystack) else re.compile(r"\s")
    size = CHARS_PER_TOKEN * n_tokens
    while True:
        text = (f" {haystack}" * (1 + size // len(haystack)))[:size]
        encoding = tokenizer.encode(text, add_special_tokens=False)
        if len(encoding.ids) > n_tokens:
            least = encoding.offsets[n_tokens - 1][1]
            ends = [match.end() for match in piece_end.finditer(text, least - 1) if match.end() < size]
            if ends:
                break
        size *= 2
    return [token for token, (begin, _) in zip(encoding.ids, encoding.offsets, strict=True) if begin < ends[0]]


def found(text: str, numbers: list[str]) -> int:
    """Count how many of the numbers are in the text, also inside longer ones.

    Example:
        >>> found("The numbers are 12, 345 and 6789.", ["12", "345", "678"])
        3
    """
    return sum(number in text for number in numbers)
