"""The four-needle test of the script released with arXiv:2410.18745, text for text, for comparison with its numbers.

Source: HKUNLP/STRING, niah/test_niah_llama.py, commit 216cc2f. The haystack is cut at its full stops. Pieces are added,
above 64,000 tokens 50 at a time, until the text exceeds the length less the answer's budget. The task line is
counted apart from the rest, each with the tokens that begin a document. So prompts overshoot, each by another number of
tokens. Needles are between pieces, after the given shares of their number. Pieces after the last needle are joined by a
full stop and a blank, all others by a full stop.

The numbers, the same in all tests, and then each test's depths come from one stream of Python's `random` with seed 42.
Seed 0 of the lab is this stream, and seed s the stream with 42 + s. A number counts also inside a longer one.
"""

import itertools
import random
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from tokenizers import Tokenizer

from lab.core.errors import DataError
from lab.data import synthetic
from lab.data.tokenizer import special_ends
from lab.probe import needles
from lab.probe.config import RELEASED_BUDGET, ProbeConfig
from lab.probe.needles import DEPTH_RANGE, NeedleCase

SUMMARY = "the released script's prompts, cut at full stops, overshot, of the length less 128; digits count anywhere"
TASK = synthetic.TASK.rstrip() + "\n"


class Draws(NamedTuple):
    """Four numbers, and the shares of the pieces that are before each of them."""

    numbers: list[str]
    depths: list[float]


class ReleasedPrompt(NamedTuple):
    """The text of a prompt; `indices` are those in it of the first digit of each number."""

    text: str
    indices: list[int]


def released_prompt(
    tokenizer: Tokenizer, haystack: str, length: int, test: int = 0, *, seed: int = 0, llama31: bool = False
) -> ReleasedPrompt:
    """Write the prompt of a test of the released script.

    The haystack is one text, the tests are numbered from 0, and seed 0 has the script's own. `llama31` omits the
    answer's first words, as the script does for Llama-3.1.

    Units: `length`, the script's test_max_length, in tokens; 128 of them are left for the answer.
    Raises: DataError where `length` has no room for the fixed parts, or the haystack ends before it is full.
    """
    return write(tokenizer, haystack, length - RELEASED_BUDGET, sample_needles(seed, test), llama31=llama31)


def sample_case(config: ProbeConfig, tokenizer: Tokenizer, haystack: str, length: int, test: int) -> NeedleCase:
    """Sample and encode a test.

    Raises: DataError as `released_prompt` does.
    """
    sample = sample_needles(config.seed, test)
    prompt = write(tokenizer, haystack, length - RELEASED_BUDGET, sample, llama31=config.protocol == "released_llama31")
    encoding = tokenizer.encode(prompt.text)
    # An end of text would tell the model that the prompt is over.
    ids = encoding.ids[: len(encoding.ids) - len(special_ends(tokenizer)[1])]
    distances = [len(ids) - 1 - needles.find_token(encoding, place) for place in prompt.indices]
    return NeedleCase(ids, sample.numbers, sample.depths, distances)


def shortest(config: ProbeConfig, tokenizer: Tokenizer) -> int:
    """Count the tokens of the fixed parts and the answer; a test of this length has one piece of haystack."""
    text, _ = lay_out([], sample_needles(config.seed, 0), llama31=config.protocol == "released_llama31")
    return count_tokens(tokenizer, text) + RELEASED_BUDGET


def sample_needles(seed: int, test: int) -> Draws:
    """Sample the numbers, and the depths of a test; they are the same at every length."""
    stream = random.Random(42 + seed)
    numbers = [str(stream.randint(100_000, 1_000_000)) for _ in range(4)]
    share = DEPTH_RANGE / 4
    for _ in range(test + 1):
        depths = [k * share + stream.uniform(0, share) for k in range(4)]
    return Draws(numbers, depths)


def write(tokenizer: Tokenizer, haystack: str, limit: int, sample: Draws, *, llama31: bool) -> ReleasedPrompt:
    """Write the prompt with the fewest pieces that exceeds `limit` tokens."""
    pieces, ends = split_at_stops(tokenizer, haystack, limit)
    tokens = cache(lambda n: count_tokens(tokenizer, lay_out(pieces[:n], sample, llama31=llama31)[0]))
    if tokens(0) > limit:
        raise DataError(
            f"length={limit + RELEASED_BUDGET}: too short for needle tests; use {tokens(0) + RELEASED_BUDGET} or more"
        )
    n = min(bisect_left(ends, limit - tokens(0)), len(pieces) - 1)
    # Tokens do not strictly increase with pieces, as needles move. So the search starts where the text certainly fits,
    # and takes the first number of pieces that exceeds the limit, as the script does.
    while n and tokens(n) > limit - 64:
        n -= 1
    while n < len(pieces) and tokens(n) <= limit:
        n += 1
    if n >= len(pieces):
        raise DataError(f"haystack: ends before a test of {limit + RELEASED_BUDGET} tokens is full; give a longer text")
    text, indices = lay_out(pieces[:n], sample, llama31=llama31)
    whole = TASK + text.removeprefix(".")
    return ReleasedPrompt(whole, [index + len(whole) - len(text) for index in indices])


@lru_cache(maxsize=2)
def split_at_stops(tokenizer: Tokenizer, haystack: str, limit: int) -> tuple[list[str], list[int]]:
    """Cut a text at its full stops, without the stops, in the groups of pieces of prompts of `limit` tokens.

    Returns about how many tokens there are to the end of each group, too.
    """
    size = 50 if limit > 64_000 else 1
    pieces = haystack.split(".")
    groups = [".".join(pieces[k : k + size]) for k in range(0, len(pieces), size)]
    return groups, [*itertools.accumulate(len(needles.plain_ids(tokenizer, group + ".")) for group in groups)]


def lay_out(pieces: Sequence[str], sample: Draws, *, llama31: bool) -> tuple[str, list[int]]:
    """Write all but the task line; return it with the index of each number."""
    cuts = [0, *(int(depth * len(pieces)) for depth in sample.depths)]
    text, indices = "", []
    for number, (begin, end) in zip(sample.numbers, itertools.pairwise(cuts)):
        text += ".".join(pieces[begin:end]) + ".  One of the magic number is: "
        indices.append(len(text))
        text += f"{number}. "
    ending = "\n " if llama31 else "\nThe numbers are"
    return text + ". ".join(pieces[cuts[-1] :]) + ". \n" + synthetic.QUESTION + ending, indices


def count_found(text: str, numbers: Sequence[str]) -> int:
    return sum(number in text for number in numbers)


def count_tokens(tokenizer: Tokenizer, text: str) -> int:
    """Count the tokens of the task line and of the text after it, as two documents."""
    return len(tokenizer.encode(TASK).ids) + len(tokenizer.encode(text).ids)
