"""The 13 tasks of RULER, how a case is drawn, the two scores of an answer, averages and the effective length.

    all parts = (expected strings that occur in the answer) / (expected strings)
    any part  = 1 if one of the expected strings occurs in the answer, else 0

Upper and lower case are the same, and a string occurs in an answer wherever it is a part of it, whole word or not.
Control characters of an answer become line breaks first. Question answering takes any part, all other tasks all parts.

Source: Hsieh et al. 2024, section 3 and Table 5 (parameters); NVIDIA/RULER, scripts/synthetic.yaml, scripts/eval/
evaluate.py and scripts/eval/synthetic/constants.py. lm-eval 0.4.13 has another `any part` (it divides by the number of
expected strings); this one is RULER's.
"""

import math
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from eval.engine.cases import Draft, Score, TextCase, Writer, finish
from eval.ruler.sources import Sources, Turn, questions
from eval.ruler.texts import common_words, frequent_words, needles, tracing
from lab.core.errors import ConfigError
from lab.core.types import CONFIDENCE, Row
from lab.core.yaml import read_yaml
from lab.probe.reach import find_crossing

LLAMA2_7B_AT_4K = 85.6  # percent; what RULER calls a satisfactory score
VERSION = 2  # of the cases; raised with every change to them, so that old results are not reused
CONTROL = re.compile(r"[\x00-\x1f]")

Family = Callable[[Turn], Draft]  # draws all that does not depend on the length


def all_parts(answer: str, expected: Sequence[str]) -> float:
    """Score the share of the expected strings that occur in the answer."""
    occurring = [part for part in expected if part.lower() in answer.lower()]
    return len(occurring) / len(expected)


def any_part(answer: str, expected: Sequence[str]) -> float:
    """Score 1 where one of the expected strings occurs in the answer."""
    return float(all_parts(answer, expected) > 0)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task: what draws its text and answers, and what scores an answer; `budget` tokens are left for that."""

    name: str
    category: str
    family: Family
    budget: int
    score: Score = all_parts
    source: str | None = None

    def draft(self, turn: Turn) -> Draft:
        """Sample all of a case but the length of its haystack. Reject a length without room."""
        draft = self.family(turn)
        turn.writer.check_spelling(draft.answers, self.score)
        least = turn.writer.count(draft.compose(draft.least)) + turn.budget
        if least > turn.length:
            rule = f"too short for test {turn.test} of {self.name} with its answer"
            raise ConfigError(f"--lengths={turn.length}: {rule}; use {least} or more, or leave the task out")
        return draft

    def case(self, turn: Turn) -> TextCase:
        """Sample a test of at most its length in tokens, answer included."""
        return finish(self.draft(turn), turn.writer, turn.length, turn.budget)

    def score_answer(self, drawn: TextCase, answer: str) -> Row:
        score = self.score(CONTROL.sub("\n", answer.strip()).strip(), drawn.answers)
        return {"expected": list(drawn.answers), "answer": answer, "score": score}

    def turn(self, writer: Writer, sources: Sources, length: int, budget: int, seed: int, index: int) -> Turn:
        # A checksum in place of hash(), which differs in every process.
        rng = np.random.default_rng([seed, zlib.crc32(self.name.encode()), index])
        return Turn(writer, sources, length, budget, seed, index, rng)

    def least_budget(self, writer: Writer, sources: Sources) -> int:
        """Count the tokens of the longest of 32 answers in this tokenizer; 1 if any part scores."""
        if self.score is any_part:
            return 1
        drafts = (self.family(self.turn(writer, sources, 0, 0, 0, index)) for index in range(32))
        return max(len(writer.spell(draft.answers)) for draft in drafts)


FAMILIES = {family.__name__: family for family in (needles, tracing, common_words, frequent_words, questions)}


def read_task(name: str, category: str, family: str, budget: int, source: str | None = None, **options: Any) -> Task:
    """Read a task of the file."""
    sample: Family = partial(FAMILIES[family], **options)
    score = any_part if family == "questions" else all_parts
    return Task(name=name, category=category, family=sample, budget=budget, score=score, source=source)


TASKS = {name: read_task(name, **values) for name, values in read_yaml(Path(__file__).with_name("tasks.yaml")).items()}


def wilson_interval(scores: Sequence[float]) -> tuple[float, float]:
    """Return Wilson's 95% interval of the mean of scores between 0 and 1.

    Of partial scores, whose variance is at most that of scores of 0 and 1 with the same mean, the sum is rounded down
    for the lower limit and up for the upper one.
    """
    from scipy.stats import binomtest  # here, as it takes half a second

    # Without rounding, thirds that add up to a whole number may be a bit above it, which the ceiling would raise.
    total = round(sum(scores), 9)
    tests = [binomtest(k, len(scores)) for k in (math.floor(total), math.ceil(total))]
    lower, upper = (test.proportion_ci(CONFIDENCE, "wilson") for test in tests)
    return float(lower.low), float(upper.high)


def averages(scores: pd.DataFrame) -> pd.DataFrame:
    """Average the tasks of each category, and all tasks alike: a row for each, a column for each length."""
    category = scores["task"].map(lambda name: TASKS[name].category)
    means = scores.assign(over=category).pivot_table("score", "over", "length", sort=False)
    means.loc["average"] = scores.groupby("length")["score"].mean()
    return means.sort_index(axis="columns")


def effective_length(means: pd.DataFrame) -> int:
    """Return the longest length before the first below the threshold, Llama2-7B's at 4K; 0 if that is the first."""
    average = means.loc["average"]
    return find_crossing(average.index.tolist(), average.tolist(), LLAMA2_7B_AT_4K)[0]
