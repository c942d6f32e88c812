"""The four-needle test: numbers hidden in a haystack, with a question at its end (arXiv:2410.18745, Table 5).

A case is a task line, a piece of haystack with one needle in each quarter, the question and the answer's first
words. Unlike the released script, every case has fresh numbers, depths and haystack offset and exactly the given
length, and only whole numbers count. `lab.probe.released_needles` writes the script's own prompts.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from lab.data import synthetic
from lab.data.synthetic import draw_numbers
from lab.errors import DataError

SUMMARY = "fresh numbers, depths and haystack in every test, exact length with the answer, whole numbers count"
SAMPLE_NUMBERS = 64  # numbers differ in tokens; the longest of this many is the bound
DEPTH_RANGE = 0.99  # needles are in the first 99% of the haystack, one in each equal part, as in the released script
CHARS_PER_TOKEN = 8  # first estimate of the text that fills the haystack; doubled until it does


@dataclass(frozen=True, eq=False)
class Case:
    """A prompt whose answer is known. Units: `prompt_ids` tokens."""

    prompt_ids: Sequence[int] | npt.NDArray[Any]

    @property
    def prompt_hash(self) -> str:
        """Name the prompt by the SHA-256 of its ids, 16 hex digits."""
        return hashlib.sha256(np.asarray(self.prompt_ids, dtype="<i8").tobytes()).hexdigest()[:16]


@dataclass(frozen=True)
class NeedleCase(Case):
    """One test.

    Units: `depths` fractions of the haystack, rising; `distances` tokens from the first token of the number in the
    haystack to the last one of the prompt, falling; one of each for each of `numbers`.
    """

    prompt_ids: list[int]
    numbers: list[str]
    depths: list[float]
    distances: list[int]


def make_case(
    tokenizer: Tokenizer,
    haystack: str,
    length: int,
    answer_budget: int,
    generator: np.random.Generator,
    *,
    digits: int = 6,
    needles: int = 4,
) -> NeedleCase:
    """Draw one test of exactly `length` tokens, of which the last `answer_budget` are left for the answer.

    Needle k is at a uniformly drawn word boundary of the k-th of `needles` equal parts of the haystack's first 99%.
    The haystack is read from a random index on and starts again after its end.

    Raises: DataError where `length` has no room for the fixed parts, or the haystack is empty.
    """
    numbers = draw_numbers(generator, needles, digits)
    head, planted, tail = fixed_parts(tokenizer, numbers)
    fixed = len(head) + sum(map(len, planted)) + len(tail) + answer_budget
    n_hay = length - fixed
    if n_hay < needles:
        raise DataError(
            f"length={length}: too short for the needle test; task, {needles} needles, question and answer_budget="
            f"{answer_budget} take {fixed} tokens, so use {fixed + needles} or more"
        )
    hay, boundaries = cut_haystack(tokenizer, haystack, n_hay, generator)
    places = draw_places(boundaries, n_hay, needles, generator)
    case = compose(tokenizer, numbers, hay, places, (head, planted, tail))
    n_prompt = len(case.prompt_ids)
    assert n_prompt + answer_budget == length, f"prompt of {n_prompt} tokens, wanted {length - answer_budget}"
    return case


def compose(
    tokenizer: Tokenizer,
    numbers: list[str],
    hay: list[int],
    places: list[int],
    parts: tuple[list[int], list[list[int]], list[int]],
) -> NeedleCase:
    """Put each number's needle at its place in the haystack, between the beginning and the end of the prompt.

    Units: `places` are indices of the haystack's tokens; `parts` are those of `fixed_parts`.
    """
    head, planted, tail = parts
    prompt, begin, starts = list(head), 0, []
    for number, place, ids in zip(numbers, places, planted, strict=True):
        prompt += hay[begin:place]
        starts.append(len(prompt) + number_place(tokenizer, number))
        prompt += ids
        begin = place
    prompt += hay[begin:] + tail
    depths = [place / max(1, len(hay)) for place in places]
    return NeedleCase(prompt, numbers, depths, [len(prompt) - 1 - start for start in starts])


def number_place(tokenizer: Tokenizer, number: str) -> int:
    """Return the index, in the tokens of a needle, of the first one that holds a digit of its number."""
    encoding = tokenizer.encode(synthetic.NEEDLE.format(number=number), add_special_tokens=False)
    start = synthetic.NEEDLE.index("{number}")
    return next(k for k, (_, end) in enumerate(encoding.offsets) if end > start)


def fixed_parts(tokenizer: Tokenizer, numbers: list[str]) -> tuple[list[int], list[list[int]], list[int]]:
    """Encode the parts of every case beside the haystack: the task line, a needle for each number, the question."""
    head = tokenizer.encode(synthetic.TASK).ids
    planted = [plain_ids(tokenizer, synthetic.NEEDLE.format(number=number)) for number in numbers]
    return head, planted, plain_ids(tokenizer, synthetic.QUESTION + synthetic.ANSWER_PREFIX)


def shortest(tokenizer: Tokenizer, answer_budget: int, *, digits: int, needles: int, seed: int) -> int:
    """Count the tokens of the shortest case: all fixed parts, with long numbers, and a token of haystack per needle."""
    numbers = draw_numbers(np.random.default_rng(seed), SAMPLE_NUMBERS, digits)
    head, planted, tail = fixed_parts(tokenizer, numbers)
    needle = max(map(len, planted)) + 1
    return len(head) + needles * needle + len(tail) + answer_budget


def found(text: str, numbers: list[str]) -> int:
    """Count how many of the numbers are in the text as whole numbers.

    Example:
        >>> found("The numbers are 12, 345 and 6789.", ["12", "345", "678"])
        2
    """
    return sum(bool(re.search(rf"(?<![0-9]){number}(?![0-9])", text)) for number in numbers)


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode a piece that does not begin a document."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def cut_haystack(
    tokenizer: Tokenizer, haystack: str, n_tokens: int, generator: np.random.Generator
) -> tuple[list[int], np.ndarray]:
    """Return `n_tokens` tokens from a random index on, and the indices at which a word begins.

    Raises: DataError for an empty haystack.
    """
    start = next_word(haystack, int(generator.integers(0, max(1, len(haystack)))))
    text, encoding = fill(tokenizer, haystack, n_tokens, start)
    spans = encoding.offsets[:n_tokens]
    begins = [a == 0 or text[a : a + 1].isspace() or text[a - 1].isspace() for a, _ in spans]
    return encoding.ids[:n_tokens], np.flatnonzero(begins)


def fill(tokenizer: Tokenizer, haystack: str, n_tokens: int, start: int) -> tuple[str, Encoding]:
    """Read more than `n_tokens` tokens from index `start` on; after its end, the haystack begins again.

    Raises: DataError for an empty haystack.
    """
    if not haystack.strip():
        raise DataError("haystack: empty; give a text file with words in it")
    size = CHARS_PER_TOKEN * n_tokens
    while True:
        repeats = 1 + (start + size) // len(haystack)
        text = (haystack + " ") * repeats
        text = text[start : start + size]
        encoding = tokenizer.encode(text, add_special_tokens=False)
        if len(encoding.ids) > n_tokens:
            return text, encoding
        size *= 2


def next_word(text: str, start: int) -> int:
    """Return the index of the next word, or 0 after the last word."""
    match = re.compile(r"\s\S").search(text, max(0, start - 1))
    return match.start() + 1 if match and start else 0


def draw_places(boundaries: np.ndarray, n_hay: int, needles: int, generator: np.random.Generator) -> list[int]:
    """Draw one place in each part of the haystack: a word boundary where the part has one, else any token."""
    edges = np.ceil(np.arange(needles + 1) * DEPTH_RANGE / needles * n_hay).astype(int)
    places = []
    for low, high in itertools.pairwise(edges):
        inside = boundaries[(boundaries >= low) & (boundaries < high)]
        choices = inside if len(inside) else np.arange(low, max(high, low + 1))
        places.append(int(generator.choice(choices)))
    return places


def check_spelling(tokenizer: Tokenizer, text: str, answers: Sequence[str], passes: Callable[[str], bool]) -> None:
    """Refuse a tokenizer in which `text`, which holds the right answers, could not be answered.

    For example one that decodes digits with spaces. Raises: DataError.
    """
    spelled = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids)
    if not passes(spelled):
        rule = f"reads {', '.join(answers)!r} back as {spelled!r}, so that no answer could pass"
        raise DataError(f"tokenizer.json: {rule}; give the model's own tokenizer")
