"""Test cases, and the search for the haystack with which prompt and answer fill the length.

A case is a function of (tokenizer, task, length, seed, index) alone. Random draws do not depend on the
length. Test k has the same keys, values and questions at every length, and only the haystack grows.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from eval.engine.command import CellOptions
from eval.engine.subject import Subject
from lab.core import schema
from lab.core.errors import ConfigError, DataError
from lab.core.types import Row
from lab.data.chat import NO_TOKENS, frame_question, render_turns
from lab.model.huggingface.config import declared_tokens, special_texts
from lab.probe.needles import Case, check_encoding

ASK, ANSWER = "\x02", "\x03"  # marks, in a prompt, of where a question begins and where its answer does
Compose = Callable[[int], str]
Score = Callable[[str, Sequence[str]], float]
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


@dataclass(frozen=True)
class Draft:
    """A case before the length of its haystack is chosen.

    `compose` returns the prompt with a number of haystack units, at least `least`. With `most` units the source is used
    up, and `exhausted` is the message. `refine` takes the number of units and returns a second `compose`, with smaller
    units.
    """

    compose: Compose
    least: int
    answers: tuple[str, ...]
    facts: Callable[[int], Row] = lambda units: {}
    most: int | None = None
    exhausted: str = ""
    refine: Callable[[int], Compose] | None = None


@dataclass(frozen=True, eq=False)
class TextCase(Case):
    """One test; `facts` records the hidden values and their positions, for analysis."""

    prompt: str
    answers: tuple[str, ...]
    facts: Row = field(default_factory=dict)


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
        # A copy, because the setting would change the tokenizer that the caller shares.
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self.tokenizer.encode_special_tokens = not special  # otherwise <eos> in a text is text and ends nothing

    def encode(self, text: str) -> list[int]:
        """Encode a prompt with the tokens that begin a document and without those that end it."""
        whole = self.apply_template(text)
        # A template may write the first token itself; a second one would be a prompt that no model was trained on.
        begins = self.begins and not (self.bos and whole.startswith(self.bos))
        encoding = self.tokenizer.encode(whole, add_special_tokens=begins)
        # Tokens that end a document would tell the model that the prompt is over.
        end = np.flatnonzero(np.equal(encoding.special_tokens_mask, 0))
        return list(encoding.ids[: end.max(initial=-1) + 1])

    def apply_template(self, text: str) -> str:
        """Write the questions between the marks as the chat asks them; a text begins once."""
        whole, *parts = text.split(ASK)
        bos = ""
        for part in parts:
            question, _, after = part.partition(ANSWER)
            # The template begins every question with the first token, which belongs to the first question only.
            whole += self.ask(question).removeprefix(bos) + after
            bos = self.bos or ""
        return whole

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def spell(self, answers: Sequence[str]) -> list[int]:
        return self.tokenizer.encode(answer_text(answers), add_special_tokens=False).ids

    def check_spelling(self, answers: Sequence[str], score: Score) -> None:
        """Reject a tokenizer in which the right answer would not score 1.

        Raises: DataError.
        """
        check_encoding(self.tokenizer, answer_text(answers), answers, lambda text: score(text, answers) >= 1)


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
                raise DataError(f"--chat_template={self.chat_template}: {rule}; give a file in Jinja") from error
        if self.apply_chat_template and subject.model.chat_template is None:
            rule = f"{subject.model.name} has none, as it was trained on no conversations"
            raise ConfigError(f"--apply_chat_template: {rule}; give a file by --chat_template")
        return subject.model.chat_template if self.apply_chat_template else None

    def writer(self, subject: Subject) -> Writer:
        """Build the encoder of prompts. In runs a template's special tokens are text, as they were in training.

        A folder's own template writes all special tokens, as in transformers. One of a file may leave the first to the
        tokenizer, as the papers' scripts do.
        """
        template = self.template(subject)
        if template is None:
            return Writer(subject.tokenizer)
        home = subject.model.home
        if subject.model.experiment is not None or home is None:
            return Writer(subject.tokenizer, build_asker(template))
        tokens = special_texts(home)
        for text in sorted(declared_tokens(home) - subject.tokenizer.get_vocab().keys()):
            if text in "".join(frame_question(template, tokens)):
                rule = f"chat template: writes {text}, which is not a token of tokenizer.json"
                fix = "save the folder again by AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
                raise ConfigError(f"{rule}; {fix}")
        ask, begins = build_asker(template, tokens), self.chat_template is not None
        return Writer(subject.tokenizer, ask, special=True, begins=begins, bos=tokens.get("bos_token"))


def build_asker(template: str, tokens: Mapping[str, str] = NO_TOKENS) -> Callable[[str], str]:
    """Return a function that writes a question by a template. Reject a template that does not write it."""
    frame_question(template, tokens)
    return lambda question: render_turns(template, [{"role": "user", "content": question}], answer=True, tokens=tokens)


def answer_text(answers: Sequence[str]) -> str:
    return " " + ", ".join(answers)


def finish(draft: Draft, writer: Writer, length: int, budget: int) -> TextCase:
    """Grow the haystack to the largest size that fits in `length` next to the answer; the smallest must fit.

    Raises: DataError if the source is used up.
    """
    room = length - budget
    # The search asks for some sizes again, and encoding is what it spends its time on.
    count = cache(lambda n: writer.count(draft.compose(n)))
    units = fit_units(count, room, draft.least, draft.most)
    prompt = draft.compose(units)
    if units == draft.most and count(units) < room:  # the whole source would leave room empty
        raise DataError(draft.exhausted.format(length=length))
    # The rest of the room is filled with smaller units.
    if draft.refine is not None:
        finer = draft.refine(units)
        prompt = finer(fit_units(lambda n: writer.count(finer(n)), room, 0))
    ids = np.array(writer.encode(prompt), dtype=np.int32)
    assert len(ids) <= room, f"prompt of {len(ids)} tokens in room for {room}"
    return TextCase(ids, writer.apply_template(prompt), draft.answers, draft.facts(units))


def fit_units(count: Callable[[int], int], room: int, least: int, most: int | None = None) -> int:
    """Find a number of units that takes up `room` tokens, or the last number before one that takes more.

    `count` is close to a straight line, so the search follows its slope. At least `least` units must fit.

    Example:
        >>> fit_units(lambda n: 7 + 3 * n, 100, 0), fit_units(lambda n: 7 + 3 * n, 100, 0, most=20)
        (31, 20)
    """
    low = least
    at_low = count(least)
    # The first step estimates the slope.
    step = 16
    assert at_low <= room, f"{least} units take {at_low} of {room} tokens"
    while True:  # grow until the text no longer fits
        high = low + step
        if most is not None:
            high = min(high, most)
        at_high = count(high)
        if at_high > room:
            break
        if at_high == room or high == most:
            return high
        # Letters, the smallest units, are far fewer than 100 for each token of room.
        if high - least > 100 * (room + 1):
            raise DataError("tokenizer.json: text takes no tokens in it; give the model's own tokenizer")
        slope = (at_high - at_low) / (high - low)
        low, at_low = high, at_high
        # Some units add no token, such as letters inside a word: then the step doubles.
        step *= 2
        if slope > 0:
            step = max(1, round((room - at_high) / slope))
    for number in itertools.count():  # then narrow the interval
        if high - low <= 1 or at_low == room:
            break
        slope = (at_high - at_low) / (high - low)
        middle = low + round((room - at_low) / slope)
        # Where the count bends, guesses by the slope move one end of the interval by single units. Halving it every
        # other time bounds the number of steps.
        if number >= 4 and number % 2 == 0:
            middle = (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)  # a guess at an end would not narrow the interval
        at_middle = count(middle)
        if at_middle <= room:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return low
