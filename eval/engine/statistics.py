"""Tests of two results by the outcomes of their tests, and Holm's correction.

Some tests are passed by only one of the two: b by the first, c by the second. Where the methods pass equally often,
either is as likely:

    p = min(1, 2 P(X <= min(b, c))),   X ~ Binomial(b + c, 1/2)

Tests that both pass or both fail do not inform the comparison. Among m comparisons, p rising, Holm's adjusted
values are

    a_k = max over j <= k of min(1, (m - j + 1) p_j)

Calling those at or below a level significant keeps the probability of any false call within the level.

Means over seeds are tested by eval/engine/seeds.py.

Source: McNemar 1947, in its exact form; Holm 1979.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from eval.engine.rows import limits, to_text
from eval.engine.seeds import LEVEL, NONE, Verdict, compare_over_seeds, paired_t
from lab.core.types import Row
from lab.probe.limits import exact_limits, sequential_design, share_limits
from lab.runs.folder import RunFolder

LEAST = -12.0  # the smallest p that is resolved, as a power of ten
MCNEMAR, PAIRED_T, FISHER = "exact McNemar on the same tests", "paired t on the same tests", "Fisher's exact test"
LIMITS = "exact limits that lie apart, as tests stopped early"
BASE = "rope"
FORMS = {"n": ",", "share": ".3f", "p": ".2g", "found": ".3f"}
KEY = (
    "method",
    "precision",
    "protocol",
    "needles",
    "digits",
    "answer_budget",
    "seed",
)  # of tests, in addition to hashes


def pair(first: Sequence[float], second: Sequence[float]) -> Row:
    """Compare the outcomes of the same tests in the same order, 1 passed and 0 failed, by McNemar's exact test.

    Example:
        >>> pair([True, True, False, False, False, False], [False, True, True, True, True, True])["p"]
        0.375
    """
    from scipy.stats import binomtest

    both = list(zip(first, second, strict=True))
    b = both.count((1, 0))
    c = both.count((0, 1))
    p = float(binomtest(b, b + c).pvalue) if b + c else 1.0
    n = len(both)
    return {"tests": n, "only_first": b, "only_second": c, "difference": (c - b) / n, "p": p, "test": MCNEMAR}


def holm(p: pd.Series[float]) -> pd.Series[float]:
    """Adjust the p of several comparisons; nan stays nan.

    Example:
        >>> holm(pd.Series({"a": 0.25, "b": 0.125, "c": 1.0, "d": np.nan})).tolist()
        [0.5, 0.375, 1.0, nan]
    """
    # A comparison without a test does not count among the m.
    rising = p.dropna().sort_values()
    return (rising * np.arange(len(rising), 0, -1)).clip(upper=1).cummax().reindex(p.index)


def add_p_values(cells: pd.DataFrame) -> pd.DataFrame:
    """Test every result against the first column of its line. Add the test, p, and p adjusted over the table."""
    records: list[Any] = list(cells.itertuples())
    # A line without a result in the first column has nothing to be compared with.
    base = {record.line: record for record in records if record.number == 0}
    verdicts = {}
    for record in records:
        if record.number and record.line in base:
            verdicts[record.Index] = compare(base[record.line], record)
    table = pd.DataFrame.from_dict(verdicts, "index", columns=Verdict._fields).reindex(cells.index)
    table = table.astype(dict.fromkeys(Verdict._fields[1:], float))
    table["p_adjusted"] = holm(table["p"])
    table["seeds_needed"] = table["seeds_needed"].where(table["p_adjusted"] > LEVEL)  # where nothing is shown
    table["compared"] = cells.index.isin([*verdicts])
    cells[table.columns] = table
    return cells


def compare(first: Any, second: Any) -> Verdict:
    """Test the difference of two results of one line.

    Shares of tests that stopped early are compared by their exact limits. Outcomes of the same tests take McNemar's
    exact test, or the paired t test if they are not 0 or 1. Other shares take Fisher's exact test.

    Source: Fisher 1935; Student 1908; McNemar 1947.
    """
    from scipy.stats import fisher_exact

    if max(first.seeds, second.seeds) > 1:
        return compare_over_seeds(first.by_seed, second.by_seed, (first.floor + second.floor) / 2)
    # When a sequential length stops depends on its outcomes, which the tests below do not allow for.
    if first.unit == "share" and (first.row.get("stops") or second.row.get("stops")):
        return Verdict(LIMITS, p_from_limits(first, second))
    ours, theirs = outcomes(first), outcomes(second)
    if ours and theirs and set(ours) == set(theirs):
        values = [*ours.values()]
        others = [theirs[key] for key in ours]
        if {*values, *others} <= {0.0, 1.0}:
            return Verdict(MCNEMAR, pair(values, others)["p"])
        verdict = paired_t(np.subtract(others, values).tolist(), PAIRED_T)
        if verdict.test is not None:
            return Verdict(verdict.test, verdict.p)
    if np.isnan(first.passed) or np.isnan(second.passed):
        return NONE
    table = [[first.passed, first.n - first.passed], [second.passed, second.n - second.passed]]
    return Verdict(FISHER, float(fisher_exact(table).pvalue))


def p_from_limits(first: Any, second: Any) -> float:
    """Find the smallest a at which the exact limits of two shares, each at confidence 1 - a/2, lie apart.

    A sequential probe's number of tests depends on their outcomes, for which these limits allow and other tests do not.
    Both hold their true shares with probability 1 - a or more, so that p is conservative.
    """
    from scipy.optimize import brentq

    def select_limits(record: Any) -> Callable[[float], tuple[float, float]]:
        stops = record.row.get("stops")
        passed = int(record.passed)
        n = int(record.n)
        if not stops:
            return partial(share_limits, passed, n)
        design = sequential_design(stops["tests"], tuple(stops["thresholds"]), stops["error"], stops["round"])
        return partial(exact_limits, design, n, passed)

    lower, higher = sorted((first, second), key=lambda record: record.passed / record.n)
    low, high = select_limits(lower), select_limits(higher)

    def gap(log_a: float) -> float:
        return high(1 - 10**log_a / 2)[0] - low(1 - 10**log_a / 2)[1]

    # The limits narrow as a grows, so that `gap` rises and has one root between LEAST and 0, if any.
    if gap(0.0) <= 0:
        return 1.0
    if gap(LEAST) > 0:
        return float(10**LEAST)
    return float(10 ** brentq(gap, LEAST, 0.0, xtol=1e-6))


def outcomes(record: Any) -> dict[Any, float] | None:
    """Return the score of each test by its number and prompt; None unless all n tests are recorded."""
    path = tests_file(record)
    if path is None or not path.is_file():
        return None
    place = "distance" if "distance" in record.row else "length"
    scores: dict[Any, float] = {}
    for test in read_tests(path, path.stat().st_mtime_ns):
        is_needle = "found" in test  # whose file holds all lengths and distances, and may hold more tests
        if "test" in test and (not is_needle or (test.get(place) == record.row[place] and test["test"] < record.n)):
            score = read_score(test, record.row)
            if score is not None:
                scores[test["test"], test.get("prompt_hash")] = score
    # A file may hold fewer tests than the row, as after a deletion, or scores of another version.
    complete = len(scores) == record.n and (np.isnan(record.passed) or sum(scores.values()) == record.passed)
    return scores if complete else None


def tests_file(record: Any) -> Path | None:
    """Find the file of a row's tests: the one it names, one of finished tests of the same key, or a run's cases."""
    row, folder = record.row, record.folder
    if record.evaluation not in ("probe", "methods", "distance"):
        return folder / str(row["cases"]) if row.get("cases") else None
    if record.evaluation != "probe":
        for path in sorted(folder.glob("tests-*.jsonl")):
            key = next(RunFolder(folder).read(path.name), {}).get("key", {})
            same = all(key.get(name) == row.get(name) for name in KEY)
            # A key may have the full hash of which the row has the first digits.
            for name in ("weights", "haystack"):
                same = same and str(key.get(name)).startswith(str(row.get(name)))
            if same:
                return Path(path)
    if "length" in row or "distance" in row:  # a summary has neither, and no tests of its own
        return folder / f"cases/tokens-{row.get('consumed_tokens') or 0:015d}.jsonl"
    return None


@lru_cache(maxsize=8)
def read_tests(path: Path, changed: int) -> list[Row]:
    """Read the tests of a file; `changed` distinguishes one state of the file from another."""
    return list(RunFolder(path.parent).read(path.name))


def read_score(test: Mapping[str, Any], row: Mapping[str, Any]) -> float | None:
    """Read the score of a test; that of a text is its loss per token."""
    # Measures record a score under names of their own; a text has a sum of losses.
    if "nll" in test:
        return float(test["nll"] / test["tokens"])
    if "found" in test:
        return float(test["found"] >= row.get("required", 1))
    value = test.get("passed", test.get("score"))
    if "scores" in test:
        value = test["scores"].get(row["metric"])
    if isinstance(value, list):  # a log-likelihood and its weight
        return float(-value[0] / value[1])
    return float(value) if isinstance(value, int | float) else None


def methods_table(rows: Sequence[Row]) -> str:
    """Write the methods of one length, with limits and differences to rope."""
    versus = [row["versus_rope"] or {} for row in rows]
    adjusted = holm(pd.Series([comparison.get("p", np.nan) for comparison in versus]))
    printed = []
    for row, comparison, p in zip(rows, versus, adjusted, strict=True):
        to_rope = None
        if comparison:
            mark = "*" if p <= LEVEL else " "
            to_rope = f"{comparison['difference']:+.3f}{mark}"
        printed.append(
            {
                "method": row["compared_as"],
                "n": row["n"],
                "share": row["score"],
                f"{row['confidence']:.6g} limits": limits(row, ".3f"),
                "to rope": to_rope,
                "p": p,
                "found": row["numbers_found"],
                "settings": row["method"],
            }
        )
    lines = ["", f"{rows[0]['length']:,} tokens", to_text(printed, FORMS)]
    if any(versus):
        lines.append(f"* significant at {LEVEL:g}: {MCNEMAR}, p adjusted for {adjusted.count()} methods (Holm)")
    return "\n".join(lines)
