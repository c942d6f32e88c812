"""Runs in Python: position frequency, tables and a picture of a run folder, and one table of many runs.

`lab.open_run` and `lab.frame` are these functions:

    run = lab.open_run("runs/cpu_demo")
    run.f()[96], run.g()[96], run.probes(), run.metrics(), run.plot()
    lab.frame("runs/*").groupby("data.window").effective_length.mean()

Tables are pandas DataFrames of the columns in PROBES, LENGTHS and DISTANCES. A value that was not measured is missing.
An effective length is missing where the first length fails, a high limit where the true value may lie beyond the last
length.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.counts import SavedCounts
from lab.counts.demand import per_distance
from lab.draw import beside, draw, save
from lab.errors import CheckpointError
from lab.source import find_place
from lab.train.arms import differing, read_settings
from lab.train.checkpoints import folder_name
from lab.train.folder import Record, RunFolder

if TYPE_CHECKING:
    import pandas as pd

    from lab.counts.position_counts import FloatArray, IntArray

PathLike = str | os.PathLike[str]
WIDTH = 280  # pixels of a chart
LOSS = "training loss, nats per token"
SHOWN = "position frequency and demand"
# The columns of the tables; docs/commands.md has their meanings.
EFFECTIVE = ("effective_length", "threshold", "low", "high", "smooth", "first_length", "f_at_effective_length")
REACH = ("reach", "reach_low", "reach_high", "f_at_reach", "g_from_reach")
NATURAL = ("natural_reach", "natural_reach_low", "natural_reach_high")
PROBES = ("consumed_tokens", *EFFECTIVE, *REACH, *NATURAL, "held_out_loss", "tests", "protocol", "method")
LENGTHS = ("consumed_tokens", "length", "tests", "passed", "accuracy", "low", "high", "f", "method")
DISTANCES = ("consumed_tokens", "distance", "n", "found", "score", "low", "high", "log_prob", "f", "method")


@dataclass(frozen=True)
class Picture:
    """A picture in a file, which notebooks show."""

    path: Path

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


@dataclass(frozen=True)
class Run:
    """A run folder."""

    path: Path

    def f(self, consumed_tokens: int | None = None) -> IntArray:
        """Return the position frequency, at the end or at the probe after so many consumed tokens.

        Shapes: f[i] of relative position i, int64 (window,).
        Raises: CheckpointError for a run that has counted nothing there.
        """
        return self.counts(consumed_tokens).f

    def counts(self, consumed_tokens: int | None = None) -> SavedCounts:
        """Read what was counted up to the end, or up to the probe after so many consumed tokens.

        Raises: CheckpointError for a run that has counted nothing there.
        """
        name = "counts.npz" if consumed_tokens is None else f"counts/{folder_name(consumed_tokens)}.npz"
        if not (self.path / name).exists():
            raise CheckpointError(f"{self.path}: holds no {name}; use a run that has saved or probed there")
        return SavedCounts.read(self.path / name)

    def g(self, consumed_tokens: int | None = None) -> IntArray | FloatArray:
        """Return the demand, at the end or at the probe after so many consumed tokens.

        Shapes: g[d] of evidence distance d (window,), int64 where all loss weights are 0 or 1.
        Raises: CheckpointError for a run that has counted none there.
        """
        g = self.counts(consumed_tokens).g
        if g is None:
            raise CheckpointError(f"{self.path}: was recorded before demand was counted; train it again")
        return g

    def metrics(self) -> pd.DataFrame:
        """Return one row per logged step: step, consumed_tokens, loss, lr, tokens_per_s, f_at_0.5L and others.

        Raises: CheckpointError for a broken file.
        """
        return as_table(RunFolder(self.path).records("metrics.jsonl"))

    def probes(self) -> pd.DataFrame:
        """Return one row per probe of training, with the columns of PROBES.

        Raises: CheckpointError for a broken file.
        """
        return as_table(with_demand(self.path), PROBES)

    def lengths(self) -> pd.DataFrame:
        """Return one row per probe of training and length, with the columns of LENGTHS.

        Raises: CheckpointError for a broken file.
        """
        return records_with(self.path, "length", LENGTHS)

    def distances(self) -> pd.DataFrame:
        """Return one row per probe of training and distance, with the columns of DISTANCES.

        Raises: CheckpointError for a broken file.
        """
        return records_with(self.path, "distance", DISTANCES)

    def plot(self, output: PathLike | None = None) -> Picture:
        """Draw f with g, loss, and accuracy by length, to picture.png in the run folder if no other file is named.

        Raises: MissingPackage; CheckpointError for a run that has counted nothing.
        """
        profiles, metrics, lengths = self.counts().profiles(), self.metrics(), self.lengths()
        looks: dict[str, Any] = {"names": list(profiles), "log_x": True, "log_y": True, "marks": False, "width": WIDTH}
        charts = [draw(per_distance(profiles), "distance", "per distance", "profile", title=SHOWN, **looks)]
        if len(metrics):
            loss = metrics[["consumed_tokens", "loss"]]
            charts.append(draw(loss, "consumed_tokens", "loss", marks=False, title=LOSS, width=WIDTH))
        if len(lengths):
            rows = lengths[["length", "accuracy", "consumed_tokens"]]
            named = "tests passed by length"
            charts.append(
                draw(rows, "length", "accuracy", "consumed_tokens", y_limits=(0, 1), title=named, width=WIDTH)
            )
        picture = Picture(self.path / "picture.png" if output is None else Path(output))
        save(beside(*charts, title=self.path.resolve().name), picture.path)
        return picture


def with_demand(run: Path) -> Iterator[Record]:
    """Read the summaries of probes, each with the demand from its reach on, where that was counted."""
    for record in RunFolder(run).probes():
        path = run / f"counts/{folder_name(record['consumed_tokens'])}.npz"
        known = record.get("reach") is not None and path.exists()
        yield {**record, "g_from_reach": SavedCounts.read(path).g_from(int(record["reach"])) if known else None}


def records_with(run: Path, key: str, columns: Iterable[str]) -> pd.DataFrame:
    """Return the records of all probes that have a key."""
    return as_table((record for record in RunFolder(run).records("probes.jsonl") if key in record), columns)


def open_run(path: PathLike) -> Run:
    """Open a run folder, which may still be training.

    Raises: CheckpointError for another folder.
    Example:
        lab.open_run("runs/cpu_demo").probes().effective_length
    """
    place = find_place(Path(path))
    if place.is_hugging_face or place.home != place.folder:
        raise CheckpointError(f"{path}: is no run folder; name a folder with config.yaml and probes.jsonl")
    return Run(place.folder)


def frame(runs: PathLike | Iterable[PathLike]) -> pd.DataFrame:
    """Return one row per run and probe: `run`, the settings in which the runs differ, and the columns of PROBES.

    `runs` are run folders, or patterns such as runs/*, of which other folders are left out.

    Raises: CheckpointError where there is no run.
    Example:
        lab.frame("runs/windows_*").plot.scatter("data.window", "reach")
    """
    patterns = [str(runs)] if isinstance(runs, (str, os.PathLike)) else list(map(str, runs))
    places = {path for given in patterns for path in ([given] if Path(given).exists() else glob.glob(given))}
    found = sorted(path for path in places if Path(path, "config.yaml").is_file())
    if not found:
        named = " ".join(patterns) or "runs=[]"
        raise CheckpointError(f"{named}: no run folder there; name folders with a config.yaml, as runs/*")
    settings = {path: read_settings(Path(path)) for path in found}
    apart = [name for name in differing(settings) if any(name in values for values in settings.values())]
    rows = [
        {"run": Path(path).resolve().name, **{name: settings[path].get(name) for name in apart}, **record}
        for path in found
        for record in with_demand(Path(path))
    ]
    return as_table(rows, ["run", *apart, *PROBES])


def as_table(records: Iterable[Mapping[str, Any]], columns: Iterable[str] | None = None) -> pd.DataFrame:
    """Build a table of records, with the columns named, in this order, or all."""
    import pandas as pd

    return pd.DataFrame(list(records), columns=None if columns is None else list(columns))
