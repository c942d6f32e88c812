"""What lm-evaluation-harness found, as rows, tests, and a table.

The harness gives a number for each task, metric and filter, and what every document scored. From the latter come the
95% intervals: exact limits where every document scores 0 or 1 (Clopper, Pearson 1934), the t interval of a mean where
the number is one, and, where documents score a log-likelihood with a weight (words or bytes of the text), the interval
of eval/sliding.py on the mean loss, brought to the metric's unit:

    perplexity = exp(sum_d nll_d / sum_d w_d),    bits per byte = log2 of it

A number that none of these reproduces from its documents (F1 over all, BLEU, a group's mean) has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from eval.cells import Row
from eval.intervals import exact_limits
from eval.sequential import full_design
from eval.sliding import TextLosses

CONFIDENCE = 0.95
BITS = "bits_per_byte"
AGREE = 1e-9  # relative: the harness adds the same numbers up in another order
Results = Mapping[str, Any]


def rows_of(results: Results) -> Iterator[Row]:
    """List the numbers of all tasks and groups."""
    for task, numbers in results["results"].items():
        for key, score in numbers.items():
            metric, comma, filtered = key.partition(",")
            if not comma or metric.endswith("_stderr"):
                continue
            each = values_of(results, task, filtered, metric)
            low, high = interval(metric, score, each) or (None, None)
            yield {
                "task": task,
                "task_version": results["versions"].get(task),
                "metric": metric,
                "filter": filtered,
                "higher_is_better": results["higher_is_better"].get(task, {}).get(metric),
                "fewshot": results["n-shot"].get(task),
                "n": count_of(results, task),
                "score": score if isinstance(score, int | float) else None,
                "low": low,
                "high": high,
                "confidence": CONFIDENCE,
            }


def count_of(results: Results, task: str) -> int:
    """Count a task's documents, or those of a group's tasks."""
    counts, below = results["n-samples"], results.get("group_subtasks", {}).get(task, ())
    return counts[task]["effective"] if task in counts else sum(count_of(results, name) for name in below)


def values_of(results: Results, task: str, filtered: str, metric: str) -> list[Any]:
    """List what each document scored; nothing for a group."""
    samples = results["samples"].get(task, ())
    return [sample[metric] for sample in samples if sample["filter"] == filtered and metric in sample]


def interval(metric: str, score: Any, each: Sequence[Any]) -> tuple[float, float] | None:
    """Give the 95% interval of a number that is known to come from what the documents scored.

    Example:
        >>> low, high = interval("acc", 0.8, [1.0] * 8 + [0.0] * 2)
        >>> round(low, 4), round(high, 4), interval("f1", 0.7, [0.5, 0.6])
        (0.4439, 0.9748, None)
    """
    if len(each) < 2 or not isinstance(score, int | float):
        return None
    if all(isinstance(value, tuple | list) for value in each):
        return loss_interval(metric, score, each)
    if not all(isinstance(value, int | float) for value in each):
        return None
    values = np.array(each, dtype=float)
    if not math.isclose(values.mean(), score, rel_tol=AGREE, abs_tol=AGREE):
        return None
    if set(values.tolist()) <= {0.0, 1.0}:
        return exact_limits(full_design(len(each), (0.5,)), len(each), int(values.sum()), CONFIDENCE)
    half = student.ppf((1 + CONFIDENCE) / 2, len(each) - 1) * values.std(ddof=1) / math.sqrt(len(each))
    return float(values.mean() - half), float(values.mean() + half)


def loss_interval(metric: str, score: float, each: Sequence[Any]) -> tuple[float, float] | None:
    """Give the interval of a perplexity, or of bits per byte."""
    losses = TextLosses(-np.array([nats for nats, _ in each]), np.array([weight for _, weight in each]))
    as_unit = math.log2 if metric == BITS else float
    if losses.limits is None or not math.isclose(as_unit(losses.perplexity), score, rel_tol=AGREE):
        return None
    return as_unit(losses.limits[0]), as_unit(losses.limits[1])


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
        f"{'task':<32}{'metric':<18}{'filter':<18}{'shots':>6}{'n':>7}{'score':>11}{'95% interval':>24}",
    ]
    for row in rows:
        limits = "-" if row["low"] is None else f"{row['low']:.4g} to {row['high']:.4g}"
        score = "-" if row["score"] is None else f"{row['score']:.4f}"
        shots = "-" if row["fewshot"] is None else row["fewshot"]
        words = f"{row['task']:<32}{row['metric']:<18}{row['filter']:<18}"
        lines.append(f"{words}{shots:>6}{row['n']:>7,}{score:>11}{limits:>24}")
    return "\n".join(lines)
