"""The points of `probe-lab reach`: the reach of every probe, with f, demand and settings of its run."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from eval.engine.records import ProbedRun, list_results
from lab.counts import SavedCounts, f_at
from lab.probe.reach import ONE, recompute_reach
from lab.runs.arms import classify_reach, find_bases, with_bases
from lab.runs.checkpoints import folder_name
from lab.runs.folder import RunFolder

DEMAND = "demand+1"
COLUMNS = ("f", DEMAND, "tokens", "window", "theta", "section")  # of two that cannot be told apart, the first is kept
SETTINGS = {"window": "data.window", "theta": "model.theta", "section": "data.corpus.section_tokens"}
PLAIN = "rope+plain"  # the method whose tests by eval.distance are read
ACQUIRED = 0.5  # share of numbers found at some distance, from which on a run has acquired retrieval
REACH = ("reach", "reach_low", "reach_high", "f_at_reach")


def read_points(runs: Mapping[str, ProbedRun], distance: int, *, last_only: bool = False) -> pd.DataFrame:
    """Make a row for each probe of reach, or each run's last, with f and demand at the distance, nan where unknown.

    `low` and `high` are the bounds of the log of reach: one value where it was measured, the last distance and infinity
    where it is the end, minus infinity and the first distance where it is none.
    """
    rows: list[dict[str, Any]] = []
    for name in collect_settings(runs):
        run = runs[name]
        columns = {column: run.settings.get(key) for column, key in SETTINGS.items()}
        probes = read_probed(run)
        # Counts are saved at every probe, so that f and demand are those at its time.
        for record in probes[-1:] if last_only else probes:
            tokens = record["consumed_tokens"]
            path = run.path / f"counts/{folder_name(tokens)}.npz"
            counts = SavedCounts.read(path) if path.exists() else None
            demand = None if counts is None else counts.g_from(distance)
            columns |= {"tokens": tokens, "f": f_at(counts, distance), DEMAND: None if demand is None else demand + 1}
            rows.append({**record, "run": name, "arm": name, **columns, **bounds(record)})
    points = pd.DataFrame(rows, columns=["run", "arm", "acquired", *COLUMNS, "low", "high", *REACH])
    return points.astype(dict.fromkeys((*COLUMNS, "low", "high", *REACH), float) | {"acquired": bool})


def collect_settings(runs: Mapping[str, ProbedRun]) -> dict[str, dict[str, Any]]:
    """Collect the settings of the runs that no other one starts from; those of its base stand for a start."""
    settings = {name: run.settings for name, run in runs.items()}
    bases = {*find_bases(settings).values()}
    return {name: config for name, config in with_bases(settings).items() if name not in bases}


def read_probed(run: ProbedRun) -> list[dict[str, Any]]:
    """List the reach that training probed, by rising tokens, or the one that eval.distance has measured."""
    shares: dict[int, float] = {}  # the largest found at a distance, by consumed tokens
    for row in RunFolder(run.path).records("probes.jsonl"):
        if "distance" in row:
            tokens = row["consumed_tokens"]
            shares[tokens] = max(shares.get(tokens, 0), row["found"] / row["n"])
    rows = []
    for probe in run.probes:
        if probe.get("first_distance") is not None:
            # A run may find numbers at distances nearer than any that counts as reach.
            acquired = bool(probe["reach"]) or shares.get(probe["consumed_tokens"], 0) >= ACQUIRED
            rows.append(probe | {"acquired": acquired})
    return rows or read_evaluated(run)


def read_evaluated(run: ProbedRun) -> list[dict[str, Any]]:
    """Find the reach under plain distance by the tests of eval.distance; an empty list where there are none."""
    rows: list[dict[str, Any]] = []
    for file in list_results(run.path / "eval"):
        rows += RunFolder(file.parent).read(file.name)
    tests = {row["distance"]: row for row in rows if row.get("metric") == ONE and row["method"] == PLAIN}
    if not tests:
        return []
    acquired = max(row["score"] for row in tests.values()) >= ACQUIRED
    reach = recompute_reach(tests, run.settings.get("probe.threshold", 0.8))
    return [{"consumed_tokens": next(iter(tests.values()))["consumed_tokens"], "acquired": acquired, **reach}]


def bounds(record: Mapping[str, Any]) -> dict[str, float]:
    """Return between which values the log of a probe's reach is.

    Example:
        >>> bounds({"reach": None, "reach_high": 1, "first_distance": 1, "last_distance": 9})
        {'low': -inf, 'high': 0.0}
        >>> bounds({"reach": None, "reach_high": None, "first_distance": 1, "last_distance": 9})
        {'low': -inf, 'high': inf}
        >>> bounds({"reach": 1.0, "first_distance": 1, "last_distance": 1})
        {'low': 0.0, 'high': inf}
    """
    end = classify_reach(record["reach"], record["first_distance"], record["last_distance"])
    if end == "below":  # of tests that show no number, the upper limit is all that is known
        high = record.get("reach_high", record["first_distance"])
        return {"low": -np.inf, "high": np.inf if high is None else float(np.log(high))}
    bound = float(np.log(record["reach"]))
    return {"low": bound, "high": np.inf if end == "end" else bound}
