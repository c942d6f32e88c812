"""The results of lm-evaluation-harness, as rows and tests.

The 95% interval of a number is Clopper and Pearson's where every document scores 0 or 1 and the number is their mean,
and else the harness's standard error times the quantile of Student's t to either side, where it has one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from scipy.special import stdtrit  # scipy.stats takes half a second more to import

from eval.engine.rows import Row
from eval.engine.table import limits, to_text
from lab.probe.intervals import share_limits

CONFIDENCE = 0.95
Results = Mapping[str, Any]


def rows_of(results: Results) -> Iterator[Row]:
    """List the numbers of all tasks and groups."""
    for task, numbers in results["results"].items():
        below = dict.fromkeys(tasks_of(results, task))
        reads = [read for name in below for read in results["reads"][name]]
        n = sum(results["n-samples"][name]["effective"] for name in below)
        for key, score in numbers.items():
            metric, comma, filtered = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            each = [test["scores"].get(metric) for test in tests_of(results, task, filtered)]
            yield {
                "task": task,
                "task_version": results["versions"].get(task),
                "metric": metric,
                "filter": filtered,
                "higher_is_better": results["higher_is_better"].get(task, {}).get(metric),
                "fewshot": results["n-shot"].get(task),
                "n": n,
                "score": as_number(score),
                **interval(as_number(score), each, as_number(numbers.get(f"{metric}_stderr,{filtered}")), n),
                "longest": max((tokens for tokens, _ in reads), default=0),
                "cut": sum(cut for _, cut in reads),
                "requests": len(reads),
            }


def tasks_of(results: Results, name: str) -> Iterator[str]:
    """List the tasks of a group, and of the groups in it; of a task, itself."""
    if name in results["n-samples"]:
        yield name
    for part in results.get("group_subtasks", {}).get(name, ()):
        yield from tasks_of(results, part)


def tests_of(results: Results, task: str, filtered: str) -> list[Row]:
    """List every test of a task and filter: its prompt's hash, expected and actual answer, and scores."""
    return [
        {
            "test": sample["doc_id"],
            "prompt_hash": sample["prompt_hash"][:16],
            "expected": str(sample["target"]),
            "answer": str(sample["filtered_resps"]),
            "scores": {metric: as_number(sample[metric]) for metric in sample["metrics"]},
        }
        for sample in results["samples"].get(task, ())
        if sample["filter"] == filtered
    ]


def interval(score: float | None, each: Sequence[Any], stderr: float | None, n: int) -> Row:
    """Return the limits of a number from what `n` documents score, and their kind: exact, or t.

    Example:
        >>> interval(0.5, [], stderr=0.1, n=11)  # 2.228 standard errors
        {'low': 0.277..., 'high': 0.722..., 'confidence': 0.95, 'interval': 't', 'stderr': 0.1}
    """
    low, high, kind = None, None, None
    if each and score is not None and set(map(str, each)) <= {"0.0", "1.0"} and math.isclose(np.mean(each), score):
        (low, high), kind = share_limits(round(sum(each)), len(each), CONFIDENCE), "exact"
    elif score is not None and stderr is not None:
        half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * stderr
        low, high, kind = score - half, score + half, "t"
    return {"low": low, "high": high, "confidence": CONFIDENCE, "interval": kind, "stderr": stderr}


def as_number(value: Any) -> Any:
    """Return a finite number, or a pair of them, as JSON holds it; None for anything else, as N/A."""
    if isinstance(value, tuple | list):
        return [as_number(part) for part in value]
    return float(value) if isinstance(value, Real | np.bool_) and math.isfinite(value) else None


def table(rows: Sequence[Row]) -> str:
    """Format the rows as a table."""
    first, names = rows[0], {"fewshot": "shots", "n": "n", "score": "score"}
    shown = [
        {key: row[key] for key in ("task", "metric", "filter")}
        | {name: row[key] for key, name in names.items()}
        | {"95% interval": limits(row, ".4f"), "longest": row["longest"]}
        for row in rows
    ]
    head = f"{first['model']}: {first['method']}; {first['protocol']}, texts of at most {first['length']:,} tokens"
    return f"{head}\n\n{to_text(shown, {'n': ',', 'score': '.4f', 'longest': ','})}"
