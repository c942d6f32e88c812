"""The line retrieval test: a record of named lines, each with a number, of which one is asked for at the end.

    line torpid-kid: REGISTER_CONTENT is <24169>

Line names are an adjective and a noun, all different; numbers are uniform from 1 to 50,000, all different, so that a
number belongs to one line; the line that is asked for is uniform too. Two protocols. `longeval` ends with the question,
for models that answer questions; `completion` puts the answer's first words after it, for models that only complete.

Differences from the released scripts: the words are the lab's own lists; the answer's first number must be the line's
(theirs takes the last one), so that text after the answer does not count.

Source: Li et al. 2023, LongChat's LongEval, as arXiv:2401.07004, section 4.5 and Table 3, uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from eval.engine.cases import TextCase, Writer
from eval.engine.words import Distinct, draw_pair

Protocol = Literal["longeval", "completion"]

HIGHEST = 50_000  # number; and the most lines
LEAST_LINES = 2  # a single line leaves nothing to choose
TASK = (
    "Below is a record of lines I want you to remember. Each line begins with 'line <line index>' and contains a "
    "'<REGISTER_CONTENT>' at the end of the line as a numerical value. For each line index, memorize its corresponding "
    "<REGISTER_CONTENT>. At the end of the record, I will ask you to retrieve the corresponding <REGISTER_CONTENT> of "
    "a certain line index. Now the record start:\n\n"
)
LINE = "line {name}: REGISTER_CONTENT is <{number}>\n"
QUESTION = "\nNow the record is over. Tell me what is the <REGISTER_CONTENT> in line {name}? I need the number."
ANSWER_START = "\nThe <REGISTER_CONTENT> in line {name} is <"


@dataclass(frozen=True)
class Lines:
    """How tests are written."""

    protocol: Protocol

    def case(self, writer: Writer, *, lines: int, seed: int, index: int) -> TextCase:
        """Draw test `index` of a number of lines; with more lines, those of fewer lines come first.

        The requested line is at the same fraction of the record whatever its length.
        """
        rng = np.random.default_rng([seed, index])
        share = float(rng.random())
        names, numbers = Distinct(partial(draw_pair, rng)), draw_numbers(seed, index, lines)
        asked = int(share * lines)
        listed = names.first(lines)
        record = "".join(LINE.format(name=n, number=x) for n, x in zip(listed, numbers, strict=True))
        ending = QUESTION + (ANSWER_START if self.protocol == "completion" else "")
        prompt = TASK + record + ending.format(name=listed[asked])
        facts: dict[str, Any] = {"lines": lines, "line": asked, "name": listed[asked]}
        ids = np.array(writer.encode(prompt), dtype=np.int32)
        return TextCase(ids, prompt, (str(numbers[asked]),), facts)

    def fitting(self, writer: Writer, length: int, budget: int, seed: int, index: int) -> int:
        """Find the most lines with which a test takes `length` tokens or fewer, `budget` for the answer; 0 if none.

        Every line adds tokens, so halving finds it.
        """
        room = length - budget

        def fits(lines: int) -> bool:
            return len(self.case(writer, lines=lines, seed=seed, index=index).prompt_ids) <= room

        if not fits(LEAST_LINES):
            return 0
        low, high = LEAST_LINES, 2 * LEAST_LINES
        while high < HIGHEST and fits(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


def draw_numbers(seed: int, index: int, lines: int) -> list[int]:
    """Draw different numbers, the first ones independent of their number.

    Example:
        >>> draw_numbers(0, 1, 5)[:3] == draw_numbers(0, 1, 3)
        True
    """
    rng = np.random.default_rng([seed, index, 1])
    drawn: list[int] = (rng.permutation(HIGHEST)[:lines] + 1).tolist()
    return drawn
