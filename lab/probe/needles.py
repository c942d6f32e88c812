"""The four-needle test: numbers hidden in a haystack, with a question at its end (arXiv:2410.18745, Table 5).

A case is a task line, a piece of haystack with one needle in each quarter, the question and the answer's first
words. Unlike the released script, every case has fresh numbers, depths and haystack offset and exactly the given
length, and only whole numbers count. `lab.probe.released_needles` writes the script's own prompts.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Encoding, Tokenizer

from lab.core.errors import DataError
from lab.data import synthetic
from lab.data.config import DataConfig, Synthetic
from lab.data.encoding import inside_text
from lab.data.preparation import shard_folder
from lab.data.shards import TokenStore
from lab.data.text_files import read_texts
from lab.data.tokenizer import special_ends
from lab.probe.config import ProbeConfig

SUMMARY = "fresh numbers, depths and haystack in every test, exact length with the answer, whole numbers count"
SAMPLE_NUMBERS = 64  # numbers differ in tokens; the longest of this many is the bound
DEPTH_RANGE = 0.99  # needles are in the first 99% of the haystack, one in each equal part, as in the released script
CHARS_PER_TOKEN = 8  # first estimate of the text that fills the haystack; doubled until it does
KEPT, KEPT_BYTES = "haystack.txt", 10**6  # in a run folder
NUMBER, NOT_DIGITS = re.compile("[0-9]+"), re.compile("[^0-9]")
# of groups of digits, also in LaTeX, the last of three: 770,487 or 770{,}487 or, in India, 7,70,487
SEPARATORS = (*",'_ \u00a0\u2007\u2009\u2019\u202f", r"\{,\}", r"\\,")
GROUPED = [
    re.compile(rf"(?<![0-9])(?<![0-9]{sep})[0-9]{{1,3}}{sep}(?:[0-9]{{2,3}}{sep})*[0-9]{{3}}(?!(?:{sep})?[0-9])")
    for sep in SEPARATORS
]
# more digits make it another number, also after a separator that is not whole yet
UNFINISHED = re.compile(rf"(?<![0-9])(?:[0-9]{{1,3}}(?:{'|'.join(SEPARATORS)}))*[0-9]*(?:\{{,?|\\)?\Z")

PromptParts = tuple[list[int], list[tuple[list[int], int]], list[int]]
"""Parts of a prompt around the haystack: the head, each number's needle with the number's index in it, the tail."""


def load_haystack(path: str | None, data: DataConfig, tokenizer: Tokenizer, run: Path | None = None) -> str:
    """Read the haystack of a run: what its folder `run` keeps of it, if that is given and keeps one.

    Without a path: fresh filler for the synthetic corpus, the held-out documents for any other; of a mixture's first.

    Raises: DataError for a missing, broken or empty file.
    """
    if run is not None and (run / KEPT).is_file():
        # Its hash is in the run's manifest, which is compared before.
        return (run / KEPT).read_bytes().decode("utf-8")
    if path is not None:
        return "\n".join(read_texts(Path(path), "probe.haystack"))
    data = data.parts[0]
    if isinstance(data.corpus, Synthetic):
        return write_filler(data.corpus)
    parts = []
    tokens = 0
    for document in TokenStore.open(shard_folder(data), "held_out").documents():
        parts.append(tokenizer.decode(document.tolist()))
        tokens += len(document)
        if tokens >= 2_000_000:
            break
    return "\n".join(parts)


def write_filler(corpus: Synthetic, n_tokens: int = 50_000) -> str:
    """Generate a haystack that is no document of the corpus, whose documents are numbered from 0."""
    return corpus.filler(2**40, n_tokens)


def text_to_keep(path: str | None, data: DataConfig, tokenizer: Tokenizer, longest: int) -> str | None:
    """Read the haystack that a run folder keeps, so that the run is probed with the same text wherever it is copied.

    It is all of the haystack, or the first 1 MB of a corpus if that fills the longest test; None if it is larger.
    """
    text = load_haystack(path, data, tokenizer)
    copy = text.encode()[:KEPT_BYTES].decode(errors="ignore")  # a character that the cut divides is dropped
    if len(copy) == len(text) or (path is None and len(plain_ids(tokenizer, copy)) >= longest):
        return copy
    return None


def hash_text(text: str) -> str:
    """Name a text by the first digits of its hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_enough(text: str, tokenizer: Tokenizer, n_tokens: int, length: int, source: str | None) -> None:
    """Reject a file's text that a test of `length` tokens, `n_tokens` of them from the text, would repeat.

    Raises: DataError, which begins with `source`, the setting that names the file; None for text of the corpus.
    """
    if source is None or len(plain_ids(tokenizer, text[: 2 * CHARS_PER_TOKEN * n_tokens])) >= n_tokens:
        return
    have = len(plain_ids(tokenizer, text))
    if have < n_tokens:
        raise DataError(
            f"{source}: has {have:,} tokens, a test of {length:,} has {n_tokens:,} of them, some repeated; "
            "give a longer text, or shorter lengths"
        )


@dataclass(frozen=True, eq=False)
class Case:
    """A prompt whose answer is known. Units: `prompt_ids` tokens."""

    prompt_ids: Sequence[int] | np.typing.NDArray[np.integer]

    @property
    def prompt_hash(self) -> str:
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
    """Sample one test of exactly `length` tokens, of which the last `answer_budget` are left for the answer.

    Needle k is at a uniformly sampled word boundary of the k-th of `needles` equal parts of the haystack's first 99%.
    The haystack is read from a random index on and starts again after its end.

    Raises: DataError where `length` has no room for the fixed parts, or the haystack is empty.
    """
    numbers = synthetic.sample_numbers(generator, needles, digits)
    parts = fixed_parts(tokenizer, numbers)
    head, planted, tail = parts
    fixed = len(head) + sum(len(ids) for ids, _ in planted) + len(tail) + answer_budget
    n_hay = length - fixed
    if n_hay < needles:
        raise DataError(
            f"length={length}: too short for the needle test, whose fixed parts and answer_budget={answer_budget} take "
            f"{fixed} tokens; use {fixed + needles} or more"
        )
    hay, boundaries = cut_haystack(inside_text(tokenizer), haystack, n_hay, generator)
    return compose(numbers, hay, sample_positions(boundaries, n_hay, needles, generator), parts)


def compose(numbers: list[str], hay: list[int], indices: list[int], parts: PromptParts) -> NeedleCase:
    """Put each number's needle at its index in the haystack, between the beginning and the end of the prompt.

    Units: `indices` are those of the haystack's tokens; `parts` are those of `fixed_parts`.
    """
    head, planted, tail = parts
    prompt = list(head)
    starts, depths = [], []
    for (begin, index), (ids, first) in zip(itertools.pairwise([0, *indices]), planted):
        prompt += hay[begin:index]
        starts.append(len(prompt) + first)
        depths.append(index / max(1, len(hay)))
        prompt += ids
    prompt += hay[indices[-1] :] + tail
    return NeedleCase(prompt, numbers, depths, (len(prompt) - 1 - np.array(starts)).tolist())


def fixed_parts(tokenizer: Tokenizer, numbers: list[str]) -> PromptParts:
    """Encode the parts of every case around the haystack: the task line, a needle for each number, the question."""
    # The first word begins a text, and the rest follows it: its line breaks are no edge that may be stripped.
    first = len(synthetic.TASK) if inside_text(tokenizer) is tokenizer else synthetic.TASK.index(" ")
    task = tokenizer.encode(synthetic.TASK[:first], add_special_tokens=False).ids
    return (
        # without special tokens that end a text
        special_ends(tokenizer)[0] + task + plain_ids(tokenizer, synthetic.TASK[first:]),
        [encode_needle(tokenizer, number) for number in numbers],
        plain_ids(tokenizer, synthetic.QUESTION + synthetic.ANSWER_PREFIX),
    )


def encode_needle(tokenizer: Tokenizer, number: str) -> tuple[list[int], int]:
    """Encode a number's needle; return it with the index of its first token that contains a digit of the number.

    Its last tokens are those of the answer, so that a model can copy them.
    """
    text, answer = synthetic.NEEDLE.format(number=number), synthetic.answer([number])
    encoding = inside_text(tokenizer).encode(answer, add_special_tokens=False)
    ids = plain_ids(tokenizer, text)
    # A tokenizer without words may join the space before the number to the word before it.
    if ids[-len(encoding.ids) :] != encoding.ids:
        ids = plain_ids(tokenizer, text.removesuffix(answer)) + encoding.ids
    return ids, len(ids) - len(encoding.ids) + find_token(encoding, answer.index(number))


def find_token(encoding: Encoding, index: int) -> int:
    """Find the first token that contains a character of a number."""
    return next(token for token, (start, end) in enumerate(encoding.offsets) if start <= index < end)


def sample_case(config: ProbeConfig, tokenizer: Tokenizer, haystack: str, length: int, test: int) -> NeedleCase:
    rng = np.random.default_rng([config.seed, length, test])
    return make_case(tokenizer, haystack, length, config.budget, rng, digits=config.digits, needles=config.needles)


def shortest(config: ProbeConfig, tokenizer: Tokenizer) -> int:
    """Count the tokens of the shortest case: all fixed parts, with long numbers, and a token of haystack per needle."""
    numbers = synthetic.sample_numbers(np.random.default_rng(config.seed), SAMPLE_NUMBERS, config.digits)
    head, planted, tail = fixed_parts(tokenizer, numbers)
    needle = max(len(ids) for ids, _ in planted) + 1
    return len(head) + config.needles * needle + len(tail) + config.budget


def first_numbers(text: str) -> set[str]:
    """Read the first number of a text in all ways: as a run of digits, in groups, and behind the mark of a list.

    Example:
        >>> sorted(first_numbers("It is 770,487, not 12")), sorted(first_numbers("1. 345")), first_numbers("none")
        (['770', '770487'], ['1', '345'], set())
    """
    numbers = set()
    # Such as "1. ", "**(2)** " or "Step 1: ".
    mark = r"^\W*(?:[a-z]+ (?=[0-9]+\W*:))?[0-9]{1,2}[*_]*[.:)\]]\W*\s"
    for part in (text, re.sub(mark, "", text, flags=re.MULTILINE | re.IGNORECASE)):
        first = NUMBER.search(part)
        if first is None:
            continue
        for pattern in (NUMBER, *GROUPED):
            match = pattern.match(part, first.start())
            if match is not None:
                numbers.add(NOT_DIGITS.sub("", match[0]))
    return numbers


def count_found(text: str, numbers: Sequence[str]) -> int:
    """Count how many of the numbers are in the text as whole numbers.

    Example:
        >>> count_found("12, 345 and 6,789", ["345", "678"]), count_found("12, 345 and 6,789", ["6789"])
        (1, 1)
    """
    answered = set(NUMBER.findall(text))
    for pattern in GROUPED:
        answered |= {NOT_DIGITS.sub("", group) for group in pattern.findall(text)}
    return sum(number in answered for number in numbers)


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode a piece that does not begin a document."""
    return list(inside_text(tokenizer).encode(text, add_special_tokens=False).ids)


def cut_haystack(
    tokenizer: Tokenizer, haystack: str, n_tokens: int, generator: np.random.Generator
) -> tuple[list[int], np.ndarray]:
    """Return `n_tokens` tokens from a random index on, and the indices at which a word begins.

    Raises: DataError for an empty haystack.
    """
    if not haystack.strip():
        raise DataError("haystack: empty; give a text file with words in it")
    start = next_word(haystack, int(generator.integers(0, len(haystack))))
    size = CHARS_PER_TOKEN * n_tokens
    ids: list[int] = []
    # One token more than needed: the last one may have been cut with the text. A haystack begins again after its end.
    while len(ids) <= n_tokens:
        text = ((haystack + " ") * (1 + (start + size) // len(haystack)))[start : start + size]
        encoding = tokenizer.encode(text, add_special_tokens=False)
        ids, size = encoding.ids, 2 * size
    begins = [a == 0 or text[a : a + 1].isspace() or text[a - 1].isspace() for a, _ in encoding.offsets[:n_tokens]]
    return ids[:n_tokens], np.flatnonzero(begins)


def next_word(text: str, start: int) -> int:
    """Return the index of the next word, or 0 after the last word."""
    match = re.compile(r"\s\S").search(text, max(0, start - 1))
    return match.start() + 1 if match and start else 0


def sample_positions(boundaries: np.ndarray, n_hay: int, needles: int, generator: np.random.Generator) -> list[int]:
    """Sample one index in each part of the haystack: a word boundary if the part has one, else any token."""
    edges = np.ceil(np.arange(needles + 1) * DEPTH_RANGE / needles * n_hay).astype(int)
    indices = []
    for low, high in itertools.pairwise(edges):
        choices = boundaries[(boundaries >= low) & (boundaries < high)]
        if not len(choices):
            choices = np.arange(low, max(high, low + 1))
        indices.append(int(generator.choice(choices)))
    return indices


def check_encoding(tokenizer: Tokenizer, text: str, answers: Sequence[str], passes: Callable[[str], bool]) -> None:
    """Reject a tokenizer that does not decode `text`, which contains the right answers, to text that passes.

    For example one that decodes digits with spaces. Raises: DataError.
    """
    decoded = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids)
    if not passes(decoded):
        raise DataError(
            f"tokenizer.json: reads {', '.join(answers)!r} back as {decoded!r}, so that no answer could pass; "
            "give the model's own tokenizer"
        )
