"""What a report shows of its runs, as data frames.

    runs       one row for each run: arm, seed, window, consumed tokens, last reach and effective length
    probes     one row for each probe: consumed tokens, reach, effective length, f at each, held-out loss
    reaches    reach under each position method, at the last probe
    distances  share of numbers found by distance under each position method, at the last probe
    lengths    share of tests passed by length under each position method, at the last probe
    frequency  f(i) of every run

An arm is a set of runs that differ in nothing but seed and name (lab/train/arms.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from eval.report.reading import Records, Row, read_frequency, read_records
from lab.errors import ConfigError
from lab.train.arms import mean_with_limits, name_arms, read_settings

POINTS = 96  # of f(i) of a run
MEASURED, BEYOND, BELOW = (
    "reach",
    "at least: last distance passed",
    "none: first distance failed",
)  # outcomes of a probe
REACH = ("reach", "reach_low", "reach_high", "first_distance", "last_distance", "f_at_reach")
LENGTH = ("effective_length", "low", "high", "first_length", "f_at_effective_length")
COLUMNS = {
    "probes": ("arm", "run", "probe", "tokens", *REACH, *LENGTH, "held_out_loss"),
    "reaches": ("arm", "run", "method", *REACH, "n"),
    "distances": ("arm", "run", "method", "distance", "score", "low", "high", "n", "f", "log_prob"),
    "lengths": ("arm", "run", "method", "length", "score", "low", "high", "n", "f"),
    "frequency": ("arm", "run", "i", "f"),
}


@dataclass(frozen=True)
class Runs:
    """The frames, and the settings of every run by name."""

    runs: pd.DataFrame
    probes: pd.DataFrame
    reaches: pd.DataFrame
    distances: pd.DataFrame
    lengths: pd.DataFrame
    frequency: pd.DataFrame
    settings: Mapping[str, Row]

    @property
    def arms(self) -> list[str]:
        """The arms, by rising settings, as the runs are."""
        return list(dict.fromkeys(self.runs["arm"]))

    @property
    def methods(self) -> list[str]:
        """The position methods in the order of every figure, plain first, then by name and rising parameters."""
        names = {*self.distances["method"], *self.lengths["method"], *self.reaches["method"]}
        return sorted(names, key=lambda name: (name != "plain", natural(name)))

    @property
    def threshold(self) -> float | None:
        """The threshold that all runs were probed with; None where they differ."""
        values = {each.get("probe.threshold", 0.8) for each in self.settings.values()}
        return float(values.pop()) if len(values) == 1 else None


def natural(name: str) -> list[str | float]:
    """Return what to sort names by so that the numbers in them rise.

    Example:
        >>> sorted(["b=9", "a=64", "a=128", "a=0.5"], key=natural)
        ['a=0.5', 'a=64', 'a=128', 'b=9']
    """
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return [float(part) if place % 2 else part for place, part in enumerate(parts)]


def read_runs(paths: Sequence[Path]) -> Runs:
    """Read run folders.

    Raises: ConfigError for what is not a run folder or has another's name, CheckpointError for broken files.
    """
    folders = {path.resolve().name: path for path in paths}
    check_folders(paths)
    settings = {name: read_settings(path) for name, path in folders.items()}
    arms = name_arms(settings)
    folders = dict(sorted(folders.items(), key=lambda item: natural(arms[item[0]])))
    records = {name: read_records(path) for name, path in folders.items()}
    about = {name: {"arm": arms[name], "run": name} for name in folders}
    found: dict[str, list[Row]] = {
        kind: [about[name] | row for name, each in records.items() for row in getattr(each, kind)]
        for kind in ("probes", "reaches", "distances", "lengths")
    }
    found["frequency"] = [about[name] | row for name in folders for row in read_frequency(folders[name], POINTS)]
    frames = framed(found)
    overviews = [about[name] | overview(settings[name], each) for name, each in records.items()]
    return Runs(pd.DataFrame(overviews), **frames, settings=settings)


def framed(found: Mapping[str, Sequence[Row]]) -> dict[str, pd.DataFrame]:
    """Make a frame of each kind of rows, with one row for each thing measured."""
    frames = {kind: pd.DataFrame(rows).reindex(columns=list(COLUMNS[kind])) for kind, rows in found.items()}
    for kind, by in (("distances", "distance"), ("lengths", "length")):
        frames[kind] = most_tested(frames[kind], ["run", "method", by])
    frames["reaches"] = most_tested(frames["reaches"], ["run", "method"])
    return frames


def check_folders(paths: Sequence[Path]) -> None:
    """Check that all are run folders, and that none has the name of another.

    Raises: ConfigError.
    """
    faults, names = [], set()
    for path in paths:
        if not path.is_dir():
            faults.append(f"{path}: no such folder; name run folders")
        elif not (path / "config.yaml").is_file():
            faults.append(f"{path}: not a run folder, it has no config.yaml; name run folders")
        if path.resolve().name in names:
            faults.append(f"{path}: another folder has the same name; rename one of them")
        names.add(path.resolve().name)
    if faults:
        raise ConfigError(*faults)


def overview(settings: Row, records: Records) -> Row:
    """Describe where a run ended; an evaluation's reach stands in where training did not probe it."""
    last = records.probes[-1] if records.probes else {}
    if "reach" not in last:
        own = [row for row in records.reaches if row["method"] == "plain"]
        last = {**last, **{name: own[-1].get(name) for name in REACH if own}}
    about = {"seed": settings.get("run.seed"), "window": settings.get("data.window"), "tokens": records.tokens or None}
    return {**about, **{name: last.get(name) for name in (*REACH, *LENGTH, "held_out_loss")}}


def most_tested(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Keep of rows about the same thing the one with most tests, of equals the last."""
    kept = rows.assign(n=rows["n"].fillna(0)).sort_values("n", kind="stable").drop_duplicates(by, keep="last")
    return rows.loc[sorted(kept.index)].reset_index(drop=True)


def folded(rows: pd.DataFrame, by: Iterable[str], value: str) -> pd.DataFrame:
    """Fold the runs of an arm: the `mean` of a value, limits `low` and `high`, nan for one run, and `count` of runs."""
    groups = [*by]
    lists = rows.dropna(subset=[value]).groupby(groups, sort=False)[value].agg(list).reset_index()
    limits = pd.DataFrame([mean_with_limits(each) for each in lists[value]], columns=["mean", "low", "high"])
    return lists[groups].assign(**limits, count=lists[value].map(len).astype(int))


def at_end(rows: pd.DataFrame) -> pd.Series:
    """Mark the runs whose reach is the farthest distance tested, so that it may be longer."""
    return pd.to_numeric(rows["reach"]) >= pd.to_numeric(rows["last_distance"])


def shares(rows: pd.DataFrame, x: str) -> pd.DataFrame:
    """Fold seeds: the mean share with limits over seeds; of one run, the limits of its tests."""
    by = ("arm", "method", x)
    if rows.empty:
        return pd.DataFrame(columns=[*by, "share", "low", "high", "runs", "f", "tests"])
    mean = folded(rows, by, "score").rename(columns={"mean": "share", "count": "runs"})
    tests: Any = {name: (name, how) for name, how in (("low", "first"), ("high", "first"), ("f", "mean"), ("n", "sum"))}
    one = rows.dropna(subset=["score"]).groupby(list(by), sort=False).agg(**tests).reset_index()
    alone = mean["runs"] == 1
    for limit in ("low", "high"):
        mean[limit] = mean[limit].where(~alone, one[limit]).clip(0, 1)
    f = one["f"].astype(float).round()  # of rows without any it is a column of objects, which no page can hold
    return mean.assign(f=f, tests=one["n"])


def reach_points(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Fold the runs of each group: a row for the mean reach, and one at the first distance for runs that failed there.

    Limits are over seeds; of one run, those of its tests, which end at the first and last distance.
    """
    tested = rows[rows["reach"].notna() | rows["first_distance"].notna()]
    points = [
        dict(zip(by, key, strict=True)) | point
        for key, group in tested.groupby(by, sort=False)
        for point in points_of(group)
    ]
    frame = pd.DataFrame(points, columns=[*by, "reach", "low", "high", "runs", "outcome"])
    return frame.assign(outcome=pd.Categorical(frame["outcome"], [MEASURED, BEYOND, BELOW]))


def points_of(group: pd.DataFrame) -> Iterator[Row]:
    """Describe the runs of a group that have a reach, and those that have none."""
    found, failed = group.dropna(subset=["reach"]), group[group["reach"].isna()]
    if len(found):
        mean, *over_seeds = mean_with_limits(found["reach"].astype(float).tolist())
        low, high = over_seeds if len(found) > 1 else limits_of(found.iloc[0])
        outcome = BEYOND if at_end(found).any() else MEASURED
        yield {"reach": mean, "low": np.maximum(low, 0), "high": high, "runs": len(found), "outcome": outcome}
    if len(failed):
        low, high = (np.nan, np.nan) if len(failed) > 1 else limits_of(failed.iloc[0])
        first = failed["first_distance"].mean()
        yield {"reach": first, "low": low, "high": high, "runs": len(failed), "outcome": BELOW}


def limits_of(run: pd.Series) -> tuple[float, float]:
    """Return the limits of one run's tests."""
    low = run["first_distance"] if pd.isna(run["reach_low"]) else run["reach_low"]
    high = run["last_distance"] if pd.isna(run["reach_high"]) else run["reach_high"]
    return low, high


def farthest(reaches: pd.DataFrame) -> float:
    """Find the last distance tested; the farthest reach or 1, where no record names one, as without training's own."""
    known = [pd.to_numeric(reaches[name]).max() for name in ("last_distance", "reach_high", "reach") if name in reaches]
    return float(next((value for value in known if not np.isnan(value)), 1.0))
