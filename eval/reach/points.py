"""The points of the regression: one for each probe of each run.

f is taken at one distance that all windows hold. Neither f at the reach nor f at a fraction of the window could stand
there: the first has reach on both sides of the equation, the second is another distance in each window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from eval.reach.regression import measured
from lab.counts import SavedCounts, f_at
from lab.errors import ConfigError
from lab.train.arms import name_arms, read_settings
from lab.train.checkpoints import folder_name
from lab.train.folder import RunFolder

COLUMNS = ("f", "tokens", "window", "theta", "section")  # of two that cannot be told apart, the first is kept
SETTINGS = {"window": "data.window", "theta": "model.theta", "section": "data.corpus.section_tokens"}
REACH = ("reach", "reach_low", "reach_high", "f_at_reach")
Settings = Mapping[str, dict[str, Any]]


def read_all(runs: Sequence[Path]) -> Settings:
    """Read the settings of runs by name.

    Raises: ConfigError for what is not a run folder, or for two of one name; CheckpointError for broken files.
    """
    names = [run.resolve().name for run in runs]
    rule = "must be a run folder, with a config.yaml; name run folders"
    faults = [f"{run}: {rule}" for run in runs if not (run / "config.yaml").is_file()]
    twice = sorted({name for name in names if names.count(name) > 1})
    faults += [f"{name}: must be the name of one folder only; rename the others" for name in twice]
    if faults or not runs:
        raise ConfigError(*(faults or ["RUNS: must be set; name run folders"]))
    return {name: read_settings(run) for name, run in zip(names, runs, strict=True)}


def read_points(runs: Sequence[Path], settings: Settings, distance: int, *, last: bool) -> tuple[pd.DataFrame, int]:
    """Read a row for each probe of reach, or each run's `last`; and count the probes without f at the distance.

    `low` and `high` are the bounds of the log of reach: one value where it was measured, the last distance and infinity
    where it is the end, minus infinity and the first distance where it is none.
    """
    arms = name_arms(settings)
    rows: list[dict[str, Any]] = []
    for run, name in zip(runs, settings, strict=True):
        about = {"run": name, "arm": arms[name]} | {column: settings[name].get(key) for column, key in SETTINGS.items()}
        rows += [about | row for row in list(probes_of(run, distance))[-1 if last else None :]]
    points = pd.DataFrame(rows, columns=["run", "arm", *COLUMNS, "low", "high", *REACH])
    known = points[points["f"].notna() & (points["f"] > 0)].reset_index(drop=True)
    return known.astype(dict.fromkeys((*COLUMNS, "low", "high", *REACH), float)), len(points) - len(known)


def probes_of(run: Path, distance: int) -> Iterator[dict[str, Any]]:
    """Go through a run's probes of reach by rising tokens."""
    folder = RunFolder(run)
    for record in sorted(folder.probes(), key=lambda record: record["consumed_tokens"]):
        if record.get("first_distance") is None:
            continue
        tokens = record["consumed_tokens"]
        path = run / f"counts/{folder_name(tokens)}.npz"
        f = f_at(SavedCounts.read(path), distance) if path.exists() else None
        yield {"tokens": tokens, "f": f, **bounds(record), **{name: record.get(name) for name in REACH}}


def bounds(record: Mapping[str, Any]) -> dict[str, float]:
    """Return between which values the log of a probe's reach lies.

    Example:
        >>> bounds({"reach": None, "first_distance": 1, "last_distance": 9})
        {'low': -inf, 'high': 0.0}
        >>> bounds({"reach": 1.0, "first_distance": 1, "last_distance": 1})
        {'low': 0.0, 'high': inf}
    """
    reach, first, end = (record[name] for name in ("reach", "first_distance", "last_distance"))
    if reach is None:
        return {"low": -np.inf, "high": float(np.log(first))}
    return {"low": float(np.log(reach)), "high": np.inf if reach >= end else float(np.log(reach))}


def at_the_reach(points: pd.DataFrame) -> pd.DataFrame:
    """Lay out reach, and f there, of each arm's last probes: the geometric means of the runs whose reach was measured.

    f at the end of what was tested bounds the f that a reach takes from above: it is no part of the means.
    """
    finals = points.groupby("run", sort=False).tail(1)
    rows = []
    for arm, group in finals.groupby("arm", sort=False):
        found = group[measured(group)]
        of_f = found["f_at_reach"][found["f_at_reach"] > 0]
        row = {"arm": arm, "runs": len(group), "none": int(np.isneginf(group["low"]).sum())}
        row |= {"measured": len(found), "the end": int(np.isposinf(group["high"]).sum())}
        row |= {"reach": geometric(found["reach"]), "f at reach": geometric(of_f)}
        rows.append(row | {"least f": of_f.min(), "most f": of_f.max()})
    return pd.DataFrame(rows).set_index("arm")


def geometric(values: pd.Series[float]) -> float:
    """Return the geometric mean; nan of none."""
    return float(np.exp(np.log(values).mean())) if len(values) else np.nan
