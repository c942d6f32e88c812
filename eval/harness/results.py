"""What lm-evaluation-harness found, as rows, tests, and a table.

The harness gives a number for each task, metric and filter, and what every document scored; eval/harness/intervals.py
says how an interval comes from the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from eval.common.results import Row
from eval.harness.intervals import CONFIDENCE, interval, is_number
from eval.harness.scoring import Outcome

Results = Mapping[str, Any]


def rows_of(results: Results, outcomes: Callable[[str], Sequence[Outcome]]) -> Iterator[Row]:
    """List the numbers of all tasks and groups; `outcomes` gives what a task's requests came to."""
    for task, numbers in results["results"].items():
        below = tasks_of(results, task)
        run = [outcome for name in below for outcome in outcomes(name)]
        for key, score in numbers.items():
            metric, comma, filtered = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            stderr = numbers.get(f"{metric}_stderr,{filtered}")
            limits = interval(metric, score, values_of(results, task, filtered, metric), stderr)
            yield {
                "task": task,
                "task_version": results["versions"].get(task),
                "metric": metric,
                "filter": filtered,
                "higher_is_better": results["higher_is_better"].get(task, {}).get(metric),
                "fewshot": results["n-shot"].get(task),
                "n": sum(results["n-samples"][name]["effective"] for name in below),
                "score": float(score) if is_number(score) else None,
                "low": limits and limits.low,
                "high": limits and limits.high,
                "confidence": CONFIDENCE,
                "interval": limits and limits.kind,
                "stderr": float(stderr) if is_number(stderr) else None,
                "longest": max((outcome.tokens for outcome in run), default=0),
                "cut": sum(outcome.cut for outcome in run),
                "requests": len(run),
                "seconds": round(sum(outcome.seconds for outcome in run), 3),
            }


def tasks_of(results: Results, name: str) -> list[str]:
    """List the tasks of a group, and of the groups in it; of a task, itself.

    Example:
        >>> results = {"n-samples": {"a": {}, "b": {}}, "group_subtasks": {"all": ["a", "rest"], "rest": ["b"]}}
        >>> tasks_of(results, "all"), tasks_of(results, "a")
        (['a', 'b'], ['a'])
    """
    if name in results["n-samples"]:
        return [name]
    below = results.get("group_subtasks", {}).get(name, ())
    return list(dict.fromkeys(task for part in below for task in tasks_of(results, part)))


def values_of(results: Results, task: str, filtered: str, metric: str) -> list[Any]:
    """List what each document scored; nothing for a group."""
    samples = results["samples"].get(task, ())
    return [sample[metric] for sample in samples if sample["filter"] == filtered and metric in sample]


def cases_of(results: Results) -> dict[tuple[str, str], list[Row]]:
    """List every test of every task and filter: its prompt's hash, what was expected and said, how it scored."""
    found: dict[tuple[str, str], list[Row]] = {}
    for task, samples in results["samples"].items():
        for sample in samples:
            test = {
                "test": sample["doc_id"],
                "prompt_hash": sample["prompt_hash"][:16],
                "expected": str(sample["target"]),
                "answer": str(sample["filtered_resps"]),
                "scores": {metric: as_number(sample[metric]) for metric in sample["metrics"]},
            }
            found.setdefault((task, sample["filter"]), []).append(test)
    return {key: sorted(tests, key=lambda test: int(test["test"])) for key, tests in found.items()}


def as_number(value: Any) -> Any:
    """Keep numbers and pairs of numbers; anything else is left out of the tests.

    Example:
        >>> as_number(True), as_number((-3.5, 4)), as_number("text")
        (1.0, [-3.5, 4.0], None)
    """
    if isinstance(value, tuple | list):
        return [as_number(part) for part in value]
    return float(value) if isinstance(value, int | float | np.number | np.bool_) else None


def table(rows: Sequence[Row]) -> str:
    """Lay the rows out for reading."""
    first = rows[0]
    lines = [
        f"{first['model']}: {first['method']}; {first['protocol']}, texts of at most {first['length']:,} tokens",
        "",
        f"{'task':<32}{'metric':<18}{'filter':<18}{'shots':>6}{'n':>7}{'score':>11}{'95% interval':>24} {'kind':<7}"
        f"{'longest':>9}{'s':>9}",
    ]
    for row in rows:
        limits = "-" if row["low"] is None else f"{row['low']:.4g} to {row['high']:.4g}"
        score = "-" if row["score"] is None else f"{row['score']:.4f}"
        shots = "-" if row["fewshot"] is None else row["fewshot"]
        words = f"{row['task']:<32}{row['metric']:<18}{row['filter']:<18}"
        cost = f"{row['longest']:>9,}{row['seconds']:>9.1f}"
        lines.append(f"{words}{shots:>6}{row['n']:>7,}{score:>11}{limits:>24} {row['interval'] or '-':<7}{cost}")
    return "\n".join(lines)
