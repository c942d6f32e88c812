"""Test cases, and the search for the haystack with which prompt and answer fill the length.

A case is a function of (tokenizer, task, length, seed, index) alone. Random draws do not depend on the
length. Test k has the same keys, values and questions at every length, and only the haystack grows.

Words, numbers and uuids are random, and none is part of another of its kind. RULER looks for an answer anywhere in a
model's output, so that `art` would be found in `party`. The English words of words.yaml are chosen to avoid that.
Made-up words all have the same length and contain no English one.
"""

import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from eval.engine.command import CellOptions
from eval.engine.subject import Subject
from lab import errors, schema, yaml
from lab.data.chat import NO_TOKENS, around, render
from lab.model.huggingface.config import special_texts
from lab.probe.needles import Case, check_spelling

PROBE_UNITS = 16  # first step of the search, which estimates the slope
MOST_UNITS = 100  # for each token of room; letters are the smallest units
GUESSES = 4  # steps by the slope before every other one halves the interval

ASK, ANSWER = "\x02", "\x03"  # marks, in a prompt, of where a question begins and where its answer does
Compose = Callable[[int], str]
Score = Callable[[str, Sequence[str]], float]
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
DIGITS = 7
CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
SYLLABLES = 4  # of a made-up word: 70 ** 4 words, more than any list takes
Generator = np.random.Generator


@dataclass(frozen=True)
class Turn:
    """The index of a test, and how long it may be.

    Units: `length` and `budget`, the room for the answer, in tokens.
    """

    length: int
    budget: int
    seed: int
    index: int
    rng: np.random.Generator

    @property
    def room(self) -> int:
        return self.length - self.budget


@dataclass(frozen=True)
class Draft:
    """A case before the length of its haystack is chosen.

    `compose` returns the prompt with a number of haystack units, at least `least`; with `most` of them the source is
    used up, and `exhausted` is the message. `refine` takes the units found and returns a second `compose`, of smaller
    ones.
    """

    compose: Compose
    least: int
    answers: tuple[str, ...]
    facts: Callable[[int], dict[str, Any]] = lambda units: {}
    most: int | None = None
    exhausted: str = ""
    refine: Callable[[int], Compose] | None = None


@dataclass(frozen=True, eq=False)
class TextCase(Case):
    """One test; `facts` records what was hidden and where, for analysis."""

    prompt: str
    answers: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Writer:
    """Encodes prompts with one tokenizer, without padding, truncation or ending tokens.

    `ask` writes a question as a chat does, up to its answer. `special` is whether special tokens in a text are such.
    The tokenizer adds those that begin a text, unless `begins` is false or the text spells the first, `bos`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        ask: Callable[[str], str] = str,
        *,
        special: bool = False,
        begins: bool = True,
        bos: str | None = None,
    ) -> None:
        self.ask, self.begins, self.bos = ask, begins, bos
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self.tokenizer.encode_special_tokens = not special  # else a text that spells <eos> is text and ends nothing

    def encode(self, text: str) -> list[int]:
        """Encode a prompt with the tokens that begin a document and without those that end it."""
        whole = self.apply_template(text)
        begins = self.begins and not (self.bos and whole.startswith(self.bos))
        encoding = self.tokenizer.encode(whole, add_special_tokens=begins)
        ids: list[int] = encoding.ids
        end = len(ids)
        while end and encoding.special_tokens_mask[end - 1]:
            end -= 1
        return ids[:end]

    def apply_template(self, text: str) -> str:
        """Write the questions between the marks as the chat asks them; a text begins once."""
        whole, *parts = text.split(ASK)
        for number, part in enumerate(parts):
            question, _, after = part.partition(ANSWER)
            asked = self.ask(question)
            whole += (asked.removeprefix(self.bos or "") if number else asked) + after
        return whole

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def spell(self, answers: Sequence[str]) -> list[int]:
        return self.tokenizer.encode(answer_text(answers), add_special_tokens=False).ids

    def check_spelling(self, answers: Sequence[str], score: Score) -> None:
        """Refuse a tokenizer in which the right answer would not score 1.

        Raises: DataError.
        """
        check_spelling(self.tokenizer, answer_text(answers), answers, lambda text: score(text, answers) >= 1)


@dataclass(frozen=True, kw_only=True)
class ChatOptions(CellOptions):
    """Options of measurements that can ask as in a chat."""

    apply_chat_template: bool = False
    """Ask as in a chat, with the template of the run's conversations or of the Hugging Face folder."""
    chat_template: schema.PathText | None = None
    """Ask as in a chat, with the Jinja template of a file, as those of eval/papers/templates."""

    @property
    def chat(self) -> str | bool:
        return self.chat_template or self.apply_chat_template

    def template(self, subject: Subject) -> str | None:
        """Read the template; None for none.

        Raises: DataError for a file that cannot be read; ConfigError for a model that has none of its own.
        """
        if self.chat_template is not None:
            try:
                return Path(self.chat_template).read_text("utf-8")
            except (OSError, ValueError) as error:
                rule = f"cannot be read ({getattr(error, 'strerror', None) or error})"
                raise errors.DataError(f"--chat_template={self.chat_template}: {rule}; give a file in Jinja") from error
        if self.apply_chat_template and subject.model.chat_template is None:
            rule = f"{subject.model.name} has none, as it was trained on no conversations"
            raise errors.ConfigError(f"--apply_chat_template: {rule}; give a file by --chat_template")
        return subject.model.chat_template if self.apply_chat_template else None

    def writer(self, subject: Subject) -> Writer:
        """Build what encodes prompts. In runs a template's special tokens are text, as they were in training.

        A folder's own template writes all special tokens, as in transformers. One of a file may leave the first to the
        tokenizer, as the papers' scripts do.
        """
        template = self.template(subject)
        if template is None:
            return Writer(subject.tokenizer)
        if subject.model.experiment is not None or subject.model.home is None:
            return Writer(subject.tokenizer, asking(template))
        tokens = special_texts(subject.model.home)
        begins = self.chat_template is not None
        ask = asking(template, tokens)
        return Writer(subject.tokenizer, ask, special=True, begins=begins, bos=tokens.get("bos_token"))


def asking(template: str, tokens: Mapping[str, str] = NO_TOKENS) -> Callable[[str], str]:
    """Return what writes a question by a template, refusing one that does not write it."""
    around(template, tokens)
    return lambda question: render(template, [{"role": "user", "content": question}], answer=True, tokens=tokens)


def answer_text(answers: Sequence[str]) -> str:
    return " " + ", ".join(answers)


def finish(draft: Draft, writer: Writer, length: int, budget: int) -> TextCase:
    """Grow the haystack to the largest size that fits in `length` beside the answer; the smallest must fit.

    Raises: DataError for a source at its end.
    """
    room = length - budget
    count = cache(lambda n: writer.count(draft.compose(n)))
    units = fit(count, room, draft.least, draft.most)
    prompt = draft.compose(units)
    if units == draft.most and count(units) < room:
        raise errors.DataError(draft.exhausted.format(length=length))
    if draft.refine is not None:
        finer = draft.refine(units)
        prompt = finer(fit(lambda n: writer.count(finer(n)), room, 0))
    ids = np.array(writer.encode(prompt), dtype=np.int32)
    assert len(ids) <= room, f"prompt of {len(ids)} tokens in room for {room}"
    return TextCase(ids, writer.apply_template(prompt), draft.answers, draft.facts(units))


def fit(count: Callable[[int], int], room: int, least: int, most: int | None = None) -> int:
    """Find a number of units that takes up `room` tokens, or fewer where one unit more would take more.

    `count` is close to a straight line, so the search follows its slope; `least` units must fit.

    Example:
        >>> fit(lambda n: 7 + 3 * n, 100, 0), fit(lambda n: 7 + 3 * n, 100, 0, most=20)
        (31, 20)
    """
    low = least
    at_low = count(least)
    step = PROBE_UNITS
    assert at_low <= room, f"{least} units take {at_low} of {room} tokens"
    while True:  # grow until it no longer fits
        high = low + step if most is None else min(low + step, most)
        at_high = count(high) if high > low else at_low
        if at_high > room:
            break
        if at_high == room or high == most:
            return high
        if high - least > MOST_UNITS * (room + 1):
            raise errors.DataError("tokenizer.json: text takes no tokens in it; give the model's own tokenizer")
        slope = (at_high - at_low) / (high - low)
        low, at_low = high, at_high
        step = max(1, round((room - at_high) / slope)) if slope > 0 else 2 * step
    for number in itertools.count():  # then narrow the interval
        if high - low <= 1 or at_low == room:
            break
        slope = (at_high - at_low) / (high - low)
        middle = low + round((room - at_low) / slope) if number < GUESSES or number % 2 else (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)
        at_middle = count(middle)
        if at_middle <= room:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return low


@cache
def english() -> dict[str, list[str]]:
    """Read the adjectives, nouns and verbs."""
    text = Path(__file__).with_name("words.yaml").read_text(encoding="utf-8")
    return {kind: words.split() for kind, words in yaml.parse_yaml(text, "words.yaml").items()}


@cache
def english_set() -> frozenset[str]:
    return frozenset(word for words in english().values() for word in words)


def contains_english(word: str) -> bool:
    """Return whether another word contains an English word of the lists.

    Example:
        >>> contains_english("batigero"), contains_english("batigevo")
        (True, False)
    """
    ends = range(len(word) + 1)
    return any(word[a:b] in english_set() for a in ends for b in ends[a:])


def draw_pair(rng: Generator) -> str:
    """Draw an adjective and a noun, joined by a hyphen."""
    adjectives, nouns = english()["adjectives"], english()["nouns"]
    return f"{adjectives[rng.integers(len(adjectives))]}-{nouns[rng.integers(len(nouns))]}"


def draw_number(rng: Generator, digits: int = DIGITS) -> str:
    return str(rng.integers(10 ** (digits - 1), 10**digits))


def draw_uuid(rng: Generator) -> str:
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))


def draw_made_up(rng: Generator) -> str:
    """Draw a word of 8 letters, consonants and vowels in turn, that holds no English word of the lists."""
    while True:
        picks = zip(rng.integers(len(CONSONANTS), size=SYLLABLES), rng.integers(len(VOWELS), size=SYLLABLES))
        word = "".join(CONSONANTS[c] + VOWELS[v] for c, v in picks)
        if not contains_english(word):
            return word


def draw_letters(rng: Generator, alphabet: str, n: int) -> str:
    return "".join(alphabet[k] for k in rng.integers(len(alphabet), size=n))


class Distinct:
    """An endless list of distinct words, drawn when they are first asked for."""

    def __init__(self, draw: Callable[[], str], taken: list[str] | None = None) -> None:
        self.draw = draw
        self.words = list(taken or [])
        self.seen = set(self.words)

    def first(self, n: int) -> list[str]:
        """Return the first `n` words."""
        while len(self.words) < n:
            word = self.draw()
            if word not in self.seen:
                self.seen.add(word)
                self.words.append(word)
        return self.words[:n]

    def next(self) -> str:
        return self.first(len(self.words) + 1)[-1]
