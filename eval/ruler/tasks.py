"""The 13 tasks of RULER, their categories, how a case is drawn, and the two scores of an answer.

    all parts = (expected strings that occur in the answer) / (expected strings)
    any part  = 1 if one of the expected strings occurs in the answer, else 0

Upper and lower case are the same, and a string occurs in an answer wherever it is a part of it, whole word or not.
Control characters of an answer become line breaks first. Question answering takes any part, all other tasks all parts.

Source: Hsieh et al. 2024, section 3 and Table 5 (parameters); NVIDIA/RULER, scripts/synthetic.yaml, scripts/eval/
evaluate.py and scripts/eval/synthetic/constants.py. lm-eval 0.4.13 has another `any part` (it divides by the number of
expected strings); this one is RULER's.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from eval.engine.cases import Draft, Score, TextCase, Turn, Writer, finish
from eval.engine.rows import Row
from eval.ruler.aggregation import common_words, frequent_words
from eval.ruler.niah import Needles
from eval.ruler.sources import Sources
from eval.ruler.vt import tracing
from lab.errors import ConfigError

SAMPLE = 32  # answers of a task, whose longest is taken as the bound
VERSION = 2  # of the cases; raised with every change to them, so that old results are not reused
CONTROL = re.compile(r"[\x00-\x1f]")

Category = Literal["retrieval", "multi-hop tracing", "aggregation", "question answering"]
Family = Callable[[Writer, Sources, Turn], Draft]  # draws all that does not depend on the length


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


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task.

    Units: `budget`, what RULER leaves for the answer, in tokens.
    """

    name: str
    category: Category
    family: Family
    budget: int
    score: Score = all_parts
    source: str | None = None

    def draft(self, writer: Writer, sources: Sources, turn: Turn) -> Draft:
        """Draw all of a case but the length of its haystack."""
        draft = self.family(writer, sources, turn)
        writer.check_spelling(draft.answers, self.score)
        return draft

    def judge(self, drawn: TextCase, answer: str) -> Row:
        """Score an answer."""
        score = self.score(clean(answer), drawn.answers)
        return {"expected": list(drawn.answers), "answer": answer, "score": score, **drawn.facts}

    def turn(self, length: int, budget: int, seed: int, index: int) -> Turn:
        """Identify a test, and seed its draws."""
        return Turn(length, budget, seed, index, np.random.default_rng([seed, zlib.crc32(self.name.encode()), index]))


def needle_task(name: str, family: Needles) -> Task:
    """Make one of the eight tasks with needles."""
    source = "essays" if family.haystack == "essays" else None
    return Task(name=name, category="retrieval", family=family.draft, budget=128, source=source)


ALL = (
    needle_task("niah_single_1", Needles(haystack="noise")),
    needle_task("niah_single_2", Needles(haystack="essays")),
    needle_task("niah_single_3", Needles(haystack="essays", value_kind="uuids")),
    needle_task("niah_multikey_1", Needles(haystack="essays", keys=4)),
    needle_task("niah_multikey_2", Needles(haystack="needles")),
    needle_task("niah_multikey_3", Needles(haystack="needles", key_kind="uuids", value_kind="uuids")),
    needle_task("niah_multivalue", Needles(haystack="essays", values=4)),
    needle_task("niah_multiquery", Needles(haystack="essays", keys=4, queries=4)),
    Task(name="vt", category="multi-hop tracing", family=tracing, budget=30),
    Task(name="cwe", category="aggregation", family=common_words, budget=120, source="words"),
    Task(name="fwe", category="aggregation", family=frequent_words, budget=50),
    Task(
        name="qa_1",
        category="question answering",
        family=lambda _, sources, turn: sources.squad.draft(turn),
        budget=32,
        score=any_part,
        source="squad",
    ),
    Task(
        name="qa_2",
        category="question answering",
        family=lambda _, sources, turn: sources.hotpotqa.draft(turn),
        budget=32,
        score=any_part,
        source="hotpotqa",
    ),
)
TASKS = {task.name: task for task in ALL}
CATEGORIES: tuple[Category, ...] = ("retrieval", "multi-hop tracing", "aggregation", "question answering")


def make_case(
    writer: Writer, sources: Sources, task: Task, length: int, seed: int, index: int, *, budget: int | None = None
) -> TextCase:
    """Draw test `index` of a task: at most `length` tokens together with the `budget` for the answer.

    Raises: ConfigError for a length without room, DataError for a source or a tokenizer that cannot be used.
    """
    turn = task.turn(length, budget or task.budget, seed, index)
    draft = task.draft(writer, sources, turn)
    least = writer.count(draft.compose(draft.least)) + turn.budget
    if least > length:
        raise too_short(task, length, turn.budget, least)
    return finish(draft, writer, turn)


def least_length(
    writer: Writer, sources: Sources, task: Task, length: int, seed: int, tests: int, budget: int | None = None
) -> int:
    """Find the shortest length with room for all tests of a task, in the form that they have at `length`.

    Raises: LabError as `make_case` does.
    """
    turns = [task.turn(length, budget or task.budget, seed, index) for index in range(tests)]
    drafts = (task.draft(writer, sources, turn) for turn in turns)
    return max(writer.count(draft.compose(draft.least)) for draft in drafts) + turns[0].budget


def least_budget(writer: Writer, sources: Sources, task: Task) -> int:
    """Find how many tokens an answer takes in this tokenizer, the longest of a sample; 1 where any part will do."""
    if task.score is any_part:
        return 1
    turns = [task.turn(0, 0, 0, index) for index in range(SAMPLE)]
    return max(len(writer.spell(task.draft(writer, sources, turn).answers)) for turn in turns)


def too_short(task: Task, length: int, budget: int, least: int) -> ConfigError:
    """Return the error for a length without room for a task; it names the least with room."""
    return ConfigError(
        f"--lengths={length}: too short for {task.name}, whose fixed parts take {least - budget} tokens and the answer "
        f"{budget}; use {least} or more, or leave the task out"
    )
