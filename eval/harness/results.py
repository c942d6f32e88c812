"""What lm-evaluation-harness found, as rows, tests, and a table.

The harness returns a number for each task, metric and filter, and what every document scored, from which
eval/harness/intervals.py computes an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from eval.common.results import Row
from eval.harness.intervals import CONFIDENCE, interval, is_number
from eval.harness.model import Cost

Results = Mapping[str, Any]


def rows_of(results: Results, costs: Callable[[list[Any]], Sequence[Cost]]) -> Iterator[Row]:
    """List the numbers of all tasks and groups; `costs` looks up what requests took."""
    took = {
        task: costs([arguments for sample in samples for arguments in sample["arguments"]])
        for task, samples in results["samples"].items()
    }
    for task, numbers in results["results"].items():
        below = tasks_of(results, task)
        run = [cost for name in below for cost in took[name]]
        for key, score in numbers.items():
            metric, comma, filtered = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            stderr = numbers.get(f"{metric}_stderr,{filtered}")
            each = [sample[metric] for sample in samples_of(results, task, filtered) if metric in sample]
            limits = interval(metric, score, each, stderr)
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
                "longest": max((cost.tokens for cost in run), default=0),
                "cut": sum(cost.cut for cost in run),
                "requests": len(run),
                "seconds": round(sum(cost.seconds for cost in run), 3),
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


def samples_of(results: Results, task: str, filtered: str) -> list[Any]:
    """List a task's documents with what they scored, in order; none of a group."""
    found = [sample for sample in results["samples"].get(task, ()) if sample["filter"] == filtered]
    return sorted(found, key=lambda sample: int(sample["doc_id"]))


def cases_of(results: Results, task: str, filtered: str) -> list[Row]:
    """List every test of a task and filter: its prompt's hash, what was expected and answered, how it scored."""
    return [
        {
            "test": sample["doc_id"],
            "prompt_hash": sample["prompt_hash"][:16],
            "expected": str(sample["target"]),
            "answer": str(sample["filtered_resps"]),
            "scores": {metric: as_number(sample[metric]) for metric in sample["metrics"]},
        }
        for sample in samples_of(results, task, filtered)
    ]


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
