"""Whether two results of one line differ, and by which test. Every other column is compared to the first.

0. Means over seeds: the paired t test where both have the same seeds, else Welch's.
1. A sequential probe stopped a length as soon as its verdict was known, so that the number of tests depends on their
   outcomes, for which the tests below do not allow. The exact limits of lab/probe/intervals.py do: p is the smallest a
   at which the limits at confidence 1 - a/2 of the one lie apart from those of the other. Both hold their true shares
   with probability 1 - a or more, whatever the tests have in common, so p is conservative.
2. The outcome of every test is recorded on both sides, of the same tests with the same prompts: McNemar's exact test
   where outcomes are 0 or 1, else the paired t test (of the losses per token where the score is a perplexity).
3. Both scores are shares of independent tests: Fisher's exact test.
4. Otherwise none, as the table notes.

p is adjusted by Holm's method for all comparisons of the table together. Source: Fisher 1935; Student 1908; Holm 1979.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from eval.engine.statistics import pair
from lab.probe.intervals import exact_limits, sequential_design, share_limits
from lab.train.folder import RunFolder

LEAST = -12.0  # the smallest p that is resolved, as a power of ten
MCNEMAR, PAIRED_T, FISHER = "exact McNemar on the same tests", "paired t on the same tests", "Fisher's exact test"
LIMITS = "exact limits that lie apart, as tests stopped early"
SEEDS_PAIRED, SEEDS = "paired t over the same seeds", "Welch's t over seeds"
PRECISIONS = {"bfloat16": "bf16", "float32": "fp32"}

Verdict = tuple[str | None, float | None]  # the name of the test, and p
NONE: Verdict = (None, None)


def compare(first: Any, second: Any) -> Verdict:
    """Test the difference of two results of one line."""
    if max(first.seeds, second.seeds) > 1:
        return over_seeds(first.by_seed, second.by_seed)
    if first.unit == "share" and (first.row.get("stops") or second.row.get("stops")):
        return LIMITS, apart(first, second)
    known = outcomes(first), outcomes(second)
    if known[0] is not None and known[1] is not None and set(known[0]) == set(known[1]):
        found = paired(known[0], known[1])
        if found != NONE:
            return found
    if not (pd.isna(first.passed) or pd.isna(second.passed)):
        return FISHER, float(stats().fisher_exact([[r.passed, r.n - r.passed] for r in (first, second)]).pvalue)
    return NONE


def stats() -> Any:
    """Return scipy.stats, which takes half a second to import."""
    from scipy import stats

    return stats


def over_seeds(first: Mapping[Any, float], second: Mapping[Any, float]) -> Verdict:
    """Test the difference of two means over seeds; there is no test of a single seed."""
    if min(len(first), len(second)) < 2:
        return NONE
    if set(first) == set(second):
        p = paired_t([second[seed] - first[seed] for seed in first])
        return (None if p is None else SEEDS_PAIRED), p
    p = float(stats().ttest_ind(list(first.values()), list(second.values()), equal_var=False).pvalue)
    return (SEEDS, p) if np.isfinite(p) else NONE


def apart(first: Any, second: Any) -> float:
    """Find the smallest a at which the limits of two shares, each at confidence 1 - a/2, lie apart; 1 where none is.

    Example:
        >>> from types import SimpleNamespace as Share
        >>> all_tests = [Share(row={}, n=20, passed=passed) for passed in (2, 18)]
        >>> f"{apart(*all_tests):.1e}"
        '8.0e-04'
    """
    low, high = (limits_of(record) for record in sorted((first, second), key=lambda r: r.passed / r.n))

    def gap(log_a: float) -> float:
        confidence = 1 - 10**log_a / 2
        return high(confidence)[0] - low(confidence)[1]

    if gap(0.0) <= 0:
        return 1.0
    return float(10 ** (LEAST if gap(LEAST) > 0 else brentq(gap, LEAST, 0.0, xtol=1e-6)))


def limits_of(record: Any) -> Callable[[float], tuple[float, float]]:
    """Return a function from a confidence to a share's exact limits, under the rule that stopped its tests."""
    stops, passed, n = record.row.get("stops"), int(record.passed), int(record.n)
    if not stops:
        return partial(share_limits, passed, n)
    design = sequential_design(stops["tests"], tuple(stops["thresholds"]), stops["error"], stops["round"])
    return partial(exact_limits, design, n, passed)


def paired(first: Mapping[Any, float], second: Mapping[Any, float]) -> Verdict:
    """Test outcomes of the same tests.

    Example:
        >>> outcomes = {0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0}
        >>> paired(outcomes, {test: 1.0 for test in outcomes})
        ('exact McNemar on the same tests', 0.125)
    """
    values = np.array([[first[key], second[key]] for key in first])
    if set(values.ravel().tolist()) <= {0.0, 1.0}:
        return MCNEMAR, pair(*values.T.astype(bool).tolist()).p
    p = paired_t(values[:, 1] - values[:, 0])
    return (None if p is None else PAIRED_T), p


def paired_t(differences: Sequence[float] | np.ndarray) -> float | None:
    """Return the p of a mean difference of zero; None for one test, or where all differences are equal.

    Example:
        >>> round(paired_t([1.0, 2.0, 3.0]), 4), paired_t([0.0, 0.0]), paired_t([1.0])
        (0.0742, 1.0, None)
    """
    d = np.asarray(differences, dtype=float)
    if not d.any():
        return 1.0
    return float(stats().ttest_1samp(d, 0).pvalue) if len(d) > 1 and d.std() > 0 else None


def outcomes(record: Any) -> dict[Any, float] | None:
    """Return what each test scored, by number and prompt; None where that is not recorded for all n tests."""
    path = tests_file(record)
    if path is None or not path.is_file():
        return None
    found, place = {}, "distance" if "distance" in record.row else "length"
    for test in tests_in(path, path.stat().st_mtime_ns):
        is_needle = "found" in test  # whose file holds all lengths and distances, and may hold more tests
        own = not is_needle or (test.get(place) == record.row[place] and test["test"] < record.n)
        if "test" in test and own:
            found[test["test"], test.get("prompt_hash")] = scored(test, record.row)
    values = {key: value for key, value in found.items() if value is not None}
    complete = len(values) == record.n and (pd.isna(record.passed) or sum(values.values()) == record.passed)
    return values if complete else None


def tests_file(record: Any) -> Path | None:
    """Find the file of a row's tests: the one it names, one of finished tests, or a run's cases."""
    row: dict[str, Any] = record.row
    folder: Path = record.folder
    if record.evaluation not in ("probe", "methods", "distance"):
        return folder / str(row["cases"]) if row.get("cases") else None
    kept = None if record.evaluation == "probe" else finished_tests(row, folder)
    is_single = "length" in row or "distance" in row  # and no summary
    return kept or (folder / f"cases/tokens-{row.get('consumed_tokens') or 0:015d}.jsonl" if is_single else None)


def finished_tests(row: Mapping[str, Any], folder: Path) -> Path | None:
    """Find the file of finished tests that a row was counted from."""
    names = ("method", "protocol", "needles", "digits", "answer_budget", "seed")
    for path in sorted(folder.glob("tests-*.jsonl")):
        key = next(RunFolder(folder).read(path.name), {}).get("key", {})
        hashes = all(str(key.get(name)).startswith(str(row.get(name))) for name in ("weights", "haystack"))
        same = all(key.get(name) == row.get(name) for name in names)
        if same and hashes and key.get("precision") in (row["precision"], PRECISIONS.get(row["precision"])):
            return path
    return None


@lru_cache(maxsize=8)
def tests_in(path: Path, changed: int) -> list[dict[str, Any]]:
    """Read the tests of a file; `changed` distinguishes one state of the file from another."""
    return list(RunFolder(path.parent).read(path.name))


def scored(test: Mapping[str, Any], row: Mapping[str, Any]) -> float | None:
    """Read what one test scored; of a text, its loss per token."""
    if "nll" in test:
        return float(test["nll"] / test["tokens"])
    if "found" in test:
        return float(test["found"] >= row.get("required", 1))
    value = test["scores"].get(row["metric"]) if "scores" in test else test.get("passed", test.get("score"))
    if isinstance(value, list):  # a log-likelihood and its weight
        return float(-value[0] / value[1])
    return float(value) if isinstance(value, int | float) else None
