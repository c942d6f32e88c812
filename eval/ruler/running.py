"""Puts the cases of one task to a model, prompts of one length side by side, and scores the answers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from eval.protocol import Generates
from eval.ruler.cases import Case, Writer
from eval.ruler.metrics import clean, interval
from eval.ruler.tasks import Task

BATCH_TOKENS = 65_536  # of prompts side by side where no batch is set
MOST_ROWS = 64

Numbered = tuple[int, Case]


@dataclass(frozen=True)
class Outcome:
    """All tests of one task at one length.

    Units: `score`, `low` and `high` are percent, the mean and its 95% interval.
    """

    records: list[dict[str, Any]]

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
    model: Generates,
    writer: Writer,
    task: Task,
    cases: Iterable[Case],
    *,
    budget: int,
    rows: int,
    stop_id: int | None,
    device: torch.device | str = "cpu",
    done: Callable[[int], object] = lambda n: None,
) -> Outcome:
    """Run the cases, `rows` side by side at most; `done` hears how many are through."""
    records: dict[int, dict[str, Any]] = {}
    for group in groups(enumerate(cases), rows):
        prompts = torch.tensor([case.prompt_ids.tolist() for _, case in group], device=device)
        for (index, case), ids in zip(group, model(prompts, budget).tolist(), strict=True):
            answer = writer.tokenizer.decode(ids[: ids.index(stop_id)] if stop_id in ids else ids)
            records[index] = {
                "test": index,
                "prompt_hash": case.prompt_hash,
                "prompt_tokens": len(case.prompt_ids),
                "expected": list(case.answers),
                "answer": answer,
                "score": task.score(clean(answer), case.answers),
                **case.facts,
            }
        done(len(group))
    return Outcome([records[index] for index in sorted(records)])


def groups(cases: Iterable[Numbered], rows: int) -> Iterator[list[Numbered]]:
    """Gather cases of one length, as the key cache takes no padding."""
    waiting: dict[int, list[Numbered]] = {}
    for numbered in cases:
        group = waiting.setdefault(len(numbered[1].prompt_ids), [])
        group.append(numbered)
        if len(group) == rows:
            yield waiting.pop(len(numbered[1].prompt_ids))
    yield from waiting.values()


def rows_for(length: int) -> int:
    """Choose how many prompts of a length run side by side.

    Example:
        >>> rows_for(256), rows_for(8192), rows_for(131072)
        (64, 8, 1)
    """
    return max(1, min(MOST_ROWS, BATCH_TOKENS // length))
