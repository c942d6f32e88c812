"""Puts the cases of one task to a model, prompts of one length side by side, and scores the answers."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eval.common.cases import Case
from eval.common.results import Results
from eval.common.running import run_tests
from eval.ruler.metrics import clean, interval
from eval.ruler.tasks import Task
from lab.probe.protocol import Answers

BATCH_TOKENS = 65_536  # of prompts side by side where no batch is set
MOST_ROWS = 64


@dataclass(frozen=True)
class Outcome:
    """All tests of one task at one length.

    Units: `score`, `low` and `high` are percent, the mean and its 95% interval; `seconds` are None where nothing ran.
    """

    records: list[dict[str, Any]]
    seconds: float | None = None

    @property
    def score(self) -> float:
        """Mean score."""
        return 100 * self.mean

    @property
    def mean(self) -> float:
        """Mean score between 0 and 1."""
        return sum(float(record["score"]) for record in self.records) / len(self.records)

    @property
    def std(self) -> float | None:
        """Standard deviation over tests, in percent; None of a single one."""
        scores = [float(record["score"]) for record in self.records]
        return 100 * statistics.stdev(scores) if len(scores) > 1 else None

    @property
    def facts(self) -> dict[str, Any]:
        """What the tests were like: the shortest prompt, and, where a task has them, examples and made-up words."""
        out = {"shortest_prompt": min(record["prompt_tokens"] for record in self.records)}
        for name, each in (("examples", "example"), ("made_up_words", "made_up_words")):
            if each in self.records[0]:
                out[name] = sum(record[each] for record in self.records)
        return out

    @property
    def bounds(self) -> tuple[float, float]:
        """Interval of the mean."""
        low, high = interval(self.mean, len(self.records))
        return 100 * low, 100 * high


def run_task(
    subject: Answers,
    task: Task,
    case: Callable[[int], Case],
    tests: int,
    *,
    budget: int,
    rows: int,
    started: Results,
    done: Callable[[int], object] = lambda n: None,
) -> Outcome:
    """Run those of the tests 0 to `tests` that are not finished, `rows` side by side at most, and return all."""

    def judge(drawn: Case, answer: str) -> dict[str, Any]:
        facts = {"expected": list(drawn.answers), "answer": answer, "score": task.score(clean(answer), drawn.answers)}
        return {**facts, **drawn.facts}

    return Outcome(
        *run_tests(subject, case, tests, judge, budget=budget, rows=rows, started=started, done=done),
    )


def rows_for(length: int) -> int:
    """Choose how many prompts of a length run side by side.

    Example:
        >>> rows_for(256), rows_for(8192), rows_for(131072)
        (64, 8, 1)
    """
    return max(1, min(MOST_ROWS, BATCH_TOKENS // length))
