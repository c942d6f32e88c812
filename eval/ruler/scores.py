"""The interval of a mean score, averages by category and over all tasks, and the effective length."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from eval.engine.answers import Outcome
from eval.engine.rows import Row, pivot, to_text
from eval.ruler.tasks import ALL, CATEGORIES, TASKS
from lab.draw import Rule, draw
from lab.probe.curve import last_passing

CONFIDENCE = 0.95
ROUNDING = 9  # decimals of a sum of scores, which adds up halves and thirds
LLAMA2_7B_AT_4K = 85.6  # percent; what RULER calls a satisfactory score

Cell = tuple[str, int]  # task, length
Scores = Mapping[Cell, float]  # percent


def interval(scores: Sequence[float]) -> tuple[float, float]:
    """Return Wilson's 95% interval of the mean of scores between 0 and 1.

    Of partial scores, whose variance is at most that of scores of 0 and 1 with the same mean, the sum is rounded down
    for the lower limit and up for the upper one.

    Example:
        >>> [round(limit, 4) for limit in interval([1.0] * 5 + [0.0] * 5)]
        [0.2366, 0.7634]
        >>> [round(limit, 4) for limit in interval([0.5] * 9 + [0.0])]  # 4 and 5 of 10
        [0.1682, 0.7634]
    """
    from scipy.stats import binomtest

    total, n = round(sum(scores), ROUNDING), len(scores)
    low, high = (binomtest(end, n).proportion_ci(CONFIDENCE, "wilson") for end in (math.floor(total), math.ceil(total)))
    return float(low.low), float(high.high)


def summed(outcome: Outcome) -> Row:
    """Sum the tests of a task at one length up: their mean score in percent, its interval, and what tests were like.

    The standard deviation is over tests, None of a single one; examples and made-up words are counted where there are.
    """
    records, scores = outcome.records, [float(record["score"]) for record in outcome.records]
    mean = sum(scores) / len(scores)
    low, high = interval(scores)
    std = 100 * statistics.stdev(scores) if len(scores) > 1 else None
    row = {"score": 100 * mean, "low": 100 * low, "high": 100 * high, "std": std, "seconds": outcome.seconds}
    counted = (("examples", "example"), ("made_up_words", "made_up_words"))
    counts = {name: sum(record[each] for record in records) for name, each in counted if each in records[0]}
    return {**row, "shortest_prompt": min(record["prompt_tokens"] for record in records), **counts}


def averages(scores: Scores, length: int) -> dict[str, float]:
    """Average the tasks of each category, and all tasks alike, at one length.

    Example:
        >>> averages({("niah_single_1", 512): 90.0, ("niah_single_2", 512): 70.0, ("vt", 512): 20.0}, 512)
        {'retrieval': 80.0, 'multi-hop tracing': 20.0, 'average': 60.0}
    """
    here = {task: score for (task, at), score in scores.items() if at == length}
    out: dict[str, float] = {}
    for category in CATEGORIES:
        own = [score for task, score in here.items() if TASKS[task].category == category]
        if own:
            out[category] = sum(own) / len(own)
    return {**out, "average": sum(here.values()) / len(here)}


def lengths_of(scores: Scores) -> list[int]:
    """List the lengths, rising."""
    return sorted({length for _, length in scores})


def effective_length(scores: Scores, threshold: float) -> int:
    """Return the longest length before the first whose average is below the threshold; 0 if that is the first.

    Source: Hsieh et al. 2024, section 4: the threshold is what Llama2-7B reaches at 4K.
    Example:
        >>> effective_length({("vt", 4096): 95.0, ("vt", 8192): 85.6, ("vt", 16384): 80.0, ("vt", 32768): 90.0}, 85.6)
        8192
    """
    lengths = lengths_of(scores)
    return last_passing(lengths, [averages(scores, length)["average"] for length in lengths], threshold)


def summary(scores: Scores, threshold: float) -> dict[str, Any]:
    """Summarize the scores for files."""
    tasks = list(dict.fromkeys(task for task, _ in scores))
    return {
        "tasks": tasks,
        "averages": {str(length): averages(scores, length) for length in lengths_of(scores)},
        "effective_length": effective_length(scores, threshold),
        "threshold": threshold,
    }


def table(scores: Scores, threshold: float) -> str:
    """Format scores and averages: a row for each task, a column for each length."""
    by_length = {f"{length:,}": averages(scores, length) for length in lengths_of(scores)}
    tasks = [{"task": task, "length": f"{length:,}", "score": score} for (task, length), score in scores.items()]
    names = [task.name for task in ALL if task.name in {row["task"] for row in tasks}]
    each = to_text(pivot(tasks, "task", "length").loc[names, list(by_length)], ".1f")
    rows = [
        {"over tasks": f"average of {len(names)}" if name == "average" else name, "length": length, "score": score}
        for length, known in by_length.items()
        for name, score in known.items()
    ]
    means = to_text(pivot(rows, "over tasks", "length"), ".1f")
    which = "all 13 tasks" if len(names) == len(ALL) else f"{len(names)} of 13 tasks"
    reached = effective_length(scores, threshold)
    return f"{each}\n\n{means}\n\neffective length {reached:,} at threshold {threshold:g}, over {which}"


def chart(scores: Scores, title: str, threshold: float, rules: Sequence[Rule]) -> Any:
    """Draw a line for each category and the average of all tasks, by length."""
    n_tasks = len({task for task, _ in scores})
    rows = [
        {"length": length, "score": score, "over": f"average of {n_tasks} tasks" if name == "average" else name}
        for length in lengths_of(scores)
        for name, score in averages(scores, length).items()
    ]
    return draw(
        rows,
        "length",
        "score",
        "over",
        log_x=True,
        title=f"{title}\neffective length {effective_length(scores, threshold):,}",
        x_title="length (tokens, prompt and answer)",
        y_title="score (%)",
        y_limits=(0, 100),
        rules=[Rule("y", threshold, f"threshold {threshold:g}"), *rules],
    )
