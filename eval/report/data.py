"""What a report shows of its runs, as data frames.

    runs       one row for each run: arm, seed, window, consumed tokens, last reach and effective length
    probes     one row for each probe: consumed tokens, reach, effective length, f at each, held-out loss
    distances  share of numbers found by distance under each position method, at the last probe
    lengths    share of tests passed by length under each position method, at the last probe
    frequency  f(i) of every run, thinned

An arm is a set of runs that differ in nothing but seed and name. It is named by the settings that differ between arms.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t

from lab.errors import ConfigError
from lab.runs.arms import flat, name_arms, read_settings
from lab.runs.folder import RunFolder

Row = dict[str, Any]
POINTS = 96  # of f(i) that are kept for a run
REACH = ("reach", "reach_low", "reach_high", "first_distance", "f_at_reach")
LENGTH = ("effective_length", "low", "high", "first_length", "f_at_effective_length")
COLUMNS = {
    "probes": ("arm", "run", "tokens", *REACH, *LENGTH, "held_out_loss"),
    "distances": ("arm", "run", "method", "distance", "score", "low", "high", "n", "f", "log_prob"),
    "lengths": ("arm", "run", "method", "length", "score", "low", "high", "n", "f"),
    "frequency": ("arm", "run", "i", "f"),
}


@dataclass(frozen=True)
class Runs:
    """The frames, and the settings and environment of every run by name."""

    runs: pd.DataFrame
    probes: pd.DataFrame
    distances: pd.DataFrame
    lengths: pd.DataFrame
    frequency: pd.DataFrame
    settings: pd.DataFrame
    environment: pd.DataFrame

    @property
    def arms(self) -> list[str]:
        """The arms, in the order of the runs."""
        return list(dict.fromkeys(self.runs["arm"]))


def read_runs(paths: Sequence[Path]) -> Runs:
    """Read run folders.

    Raises: ConfigError for a folder without config.yaml or of another's name, CheckpointError for broken files.
    """
    folders = {path.name: path for path in paths}
    if len(folders) < len(paths):
        raise ConfigError("RUNS: two folders have the same name; rename one of them")
    for path in paths:
        if not (path / "config.yaml").is_file():
            raise ConfigError(f"{path}: not a run folder, it has no config.yaml; name run folders")
    settings = {name: read_settings(path) for name, path in folders.items()}
    arms = name_arms(settings)
    found: dict[str, list[Row]] = {kind: [] for kind in COLUMNS}
    runs = []
    for name, path in folders.items():
        about = {"arm": arms[name], "run": name}
        probes = [about | summary for summary in summaries(path)]
        found["probes"] += probes
        for row in last_rows(path):
            found["distances" if "distance" in row else "lengths"].append(about | row)
        found["frequency"] += [about | row for row in frequency_of(path)]
        runs.append(about | overview(settings[name], probes))
    frames = {kind: pd.DataFrame(rows).reindex(columns=list(COLUMNS[kind])) for kind, rows in found.items()}
    environment = pd.DataFrame({name: read_environment(path) for name, path in folders.items()}).T
    return Runs(pd.DataFrame(runs), **frames, settings=pd.DataFrame(settings).T, environment=environment)


def summaries(path: Path) -> Iterator[Row]:
    """Read the summary of every probe of training."""
    for record in RunFolder(path).probes():
        yield {**record, "tokens": record["consumed_tokens"]}


def last_rows(path: Path) -> Iterator[Row]:
    """Read the lines of the last probe of training, and those of every evaluation at the same tokens."""
    last, _ = RunFolder(path).last_probe()
    for file in [path / "probes.jsonl", *sorted((path / "eval").glob("*/*.jsonl"))]:
        for row in RunFolder(file.parent).read(file.name):
            if row.get("consumed_tokens") == last and "score" in row and ({"distance", "length"} & set(row)):
                yield {**row, "method": short_method(str(row.get("method", "")))}


def short_method(method: str) -> str:
    """Leave out of a method what is plain.

    Example:
        >>> short_method("rope+plain"), short_method("rope+string(shift=64, window=32)")
        ('plain', 'string(shift=64, window=32)')
    """
    frequency, _, distance = method.partition("+")
    return distance if frequency == "rope" else method


def frequency_of(path: Path) -> Iterator[Row]:
    """Read f(i), thinned to POINTS values."""
    file = path / "counts.npz"
    if file.exists():
        f = np.load(file)["f"]
        for i in np.unique(np.linspace(1, len(f) - 1, POINTS).round().astype(int)):
            yield {"i": int(i), "f": int(f[i])}


def overview(settings: Row, probes: Sequence[Row]) -> Row:
    """Say where a run ended."""
    last = max(probes, key=lambda row: row["tokens"], default={})
    about = {"seed": settings.get("run.seed"), "window": settings.get("data.window")}
    return {**about, **{name: last.get(name) for name in ("tokens", *REACH, *LENGTH, "held_out_loss")}}


def read_environment(path: Path) -> Row:
    """Read where a run was computed; nothing where it is not recorded."""
    file = path / "environment.json"
    values = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return dict(flat(values if isinstance(values, dict) else {}))


def differing(settings: pd.DataFrame) -> pd.DataFrame:
    """Return the settings that are not the same in all runs, a row for each run."""
    return settings.loc[:, settings.astype(str).nunique() > 1]


def shared(settings: pd.DataFrame) -> pd.DataFrame:
    """Return the settings that all runs share, a row for each setting."""
    same = settings.loc[:, settings.astype(str).nunique() <= 1]
    return pd.DataFrame({"setting": same.columns, "value": same.iloc[0].to_numpy()})


def folded(rows: pd.DataFrame, by: Iterable[str], value: str) -> pd.DataFrame:
    """Fold the runs of an arm: the mean of a value with its n and 95% t limits, which one run has none of."""
    groups = rows.dropna(subset=[value]).groupby(list(by), sort=False)[value]
    out = groups.agg(["mean", "std", "count"]).reset_index()
    half = t.ppf(0.975, (out["count"] - 1).clip(lower=1)) * out["std"] / np.sqrt(out["count"])
    return out.assign(low=out["mean"] - half, high=out["mean"] + half)
