"""Runs in Python: position frequency, tables and a picture of a run folder, and one table of many runs.

`lab.open_run` and `lab.frame` are these functions:

    run = lab.open_run("runs/cpu_demo")
    run.f()[96], run.g()[96], run.probes(), run.metrics(), run.plot()
    lab.frame("runs/*", last=True).pivot(index="data.window", columns="seed", values="reach")

A value that was not measured is missing in a table. An effective length is missing where the first length fails, a high
limit where the true value may lie beyond the last length. A reach is missing, and `censored` is below, where the first
distance fails, or the tests show no number (lab/probe/reach.py).
"""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.core.arrays import FloatArray, IntArray
from lab.core.chart import Rule, hconcat, plot_rows, save, vconcat
from lab.core.chart_style import BELOW, BEYOND, CENSORED, RUN, range_of
from lab.core.errors import CheckpointError
from lab.counts import SavedCounts
from lab.counts.saved import per_distance
from lab.probe.reach import with_reach
from lab.runs.arms import censored, find_differences, read_settings
from lab.runs.checkpoints import folder_name
from lab.runs.folder import READ, RECORDS, Record, RunFolder, check_files
from lab.runs.source import find_place
from lab.runs.tables import unpacked

if TYPE_CHECKING:
    import pandas as pd


PathLike = str | os.PathLike[str]
WIDTH = 280  # pixels of a chart
LOSS = "training loss, nats per token"
SHOWN = "position frequency and demand"
# The columns of the tables; docs/api.md has their meanings.
EFFECTIVE = ("effective_length", "threshold", "low", "high", "smooth", "first_length", "f_at_effective_length")
ENDS = ("reach", "first_distance", "last_distance")
REACH = ("reach", "reach_low", "reach_high", "censored", "dips", *ENDS[1:], "f_at_reach", "g_from_reach")
PROBES = ("consumed_tokens", *EFFECTIVE, *REACH, "held_out_loss", "bits_per_byte", "tests", "protocol", "method")
LENGTHS = ("consumed_tokens", "length", "tests", "passed", "accuracy", "low", "high", "f", "method")
DISTANCES = ("consumed_tokens", "distance", "n", "found", "score", "low", "high", "log_prob", "f", "method")
CONTEXTS = ("consumed_tokens", "context", "loss")
BIN = ("distance", "last", "middle", "n", "documents", "nats_whole", "nats_cut")
RECALL = ("consumed_tokens", *BIN, "score", "low", "high", "method")


@dataclass(frozen=True)
class Picture:
    """A picture in a file, which notebooks show."""

    path: Path

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


@dataclass(frozen=True)
class Run:
    """A run folder; reading a broken file raises CheckpointError."""

    path: Path

    def f(self, consumed_tokens: int | None = None, kind: str | None = None) -> IntArray:
        """Return the position frequency, at the end or at the probe after so many consumed tokens.

        It is that of the layers of a kind (`model.layers`), left out, of those which encode most relative positions.

        Shapes: f[i] of relative position i, int64 (window,).
        Raises: CheckpointError for a run that has counted nothing there, or has no layers of the kind.
        """
        counts = self.counts(consumed_tokens)
        if kind is not None and kind not in counts.kinds:
            rule = f"must be one of {', '.join(counts.kinds)}" if counts.kinds else "all layers are full"
            raise CheckpointError(f"kind={kind}: {self.path} has no such layers, {rule}; use another or leave it out")
        return counts.f if kind is None else counts.kinds[kind]

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
        """Return one row per logged step: step, consumed_tokens, loss, lr, tokens_per_s, f_at_0.5L and others."""
        return as_table(RunFolder(self.path).records("metrics.jsonl"))

    def probes(self) -> pd.DataFrame:
        """Return one row per probe of training: the columns of PROBES."""
        return as_table(with_demand(self.path), PROBES)

    def lengths(self) -> pd.DataFrame:
        """Return one row per probe of training and length, with the columns of LENGTHS."""
        return records_with(self.path, "length", LENGTHS)

    def distances(self) -> pd.DataFrame:
        """Return one row per probe of training and distance, with the columns of DISTANCES."""
        return records_with(self.path, "distance", DISTANCES)

    def contexts(self) -> pd.DataFrame:
        """Return the held-out loss by visible context, a row per probe of training and context, columns CONTEXTS."""
        return as_table((row for probe in RunFolder(self.path).probes() for row in list_contexts(probe)), CONTEXTS)

    def recall(self) -> pd.DataFrame:
        """Return the gain from evidence, a row per probe of training and bin of distances, columns RECALL."""
        probes = RunFolder(self.path).probes()
        return as_table(({**probe, **row} for probe in probes for row in probe.get("recall", ())), RECALL)

    def plot(self, output: PathLike | None = None) -> Picture:
        """Draw what a run has recorded, to picture.png in the run folder if no other file is named.

        Shares found by distance come first, and the last reach. Then come accuracy by length, training loss, f with g,
        held-out loss by visible context, and the gain from evidence.

        Raises: MissingPackage; CheckpointError for a run that has counted nothing.
        """
        profiles, probes = self.counts().profiles(), self.probes()
        last = probes.iloc[-1].to_dict() if len(probes) else {}
        shares: dict[str, Any] = {"y_limits": (0, 1), "rules": [Rule("y", last.get("threshold", 0.8), "threshold")]}
        shares |= {"percent": True, "y_title": "retrieval accuracy", "x_title": "distance (tokens)"}
        log: dict[str, Any] = {"log_x": True, "marks": False, "x_title": "distance (tokens)"}
        f: dict[str, Any] = {**log, "log_y": True, "names": list(profiles), "series": "profile"}
        contexts = self.contexts()
        numbers = f"accuracy by distance: {shown_reach(last)}"
        gain: dict[str, Any] = {**log, "x_title": "distance of the evidence (tokens)", "y_title": "gain (nats)"}
        held_out = {**log, "x_title": "visible context (tokens)", "y_title": "loss (nats per token)"}
        drawn: list[tuple[pd.DataFrame, str, str, str, dict[str, Any]]] = [
            (self.distances(), "distance", "score", numbers, shares),
            (
                self.lengths(),
                "length",
                "accuracy",
                "tests passed by length",
                shares | {"x_title": "length (tokens)", "y_title": "tests passed"},
            ),
            (
                self.metrics(),
                "consumed_tokens",
                "loss",
                LOSS,
                {"marks": False, "series": None, "y_title": "loss (nats per token)"},
            ),
            (as_table(per_distance(profiles)), "distance", "per distance", SHOWN, f),
            (contexts[contexts["context"] > 0], "context", "loss", "held-out loss by visible context", held_out),
            (self.recall(), "middle", "score", "gain from evidence", gain),
        ]
        charts = []
        for rows, x, y, title, looks in drawn:
            if len(rows):
                style = {"series": "consumed_tokens", "title": title, "width": WIDTH, **looks}
                columns = dict.fromkeys([x, y, style["series"]] if style["series"] else [x, y])
                charts.append(plot_rows(rows[[*columns]], x, y, **style))
        picture = Picture(self.path / "picture.png" if output is None else Path(output))
        lines = [hconcat(*charts[k : k + 3]) for k in range(0, len(charts), 3)]
        save(vconcat(*lines, title=self.path.resolve().name), picture.path)
        return picture


def list_contexts(probe: Record) -> Iterator[Record]:
    """List the held-out loss of a probe by visible context: from `context` earlier tokens to twice that."""
    for context, loss in probe.get("context_loss", {}).items():
        yield {"consumed_tokens": probe["consumed_tokens"], "context": int(context), "loss": loss}


def shown_reach(row: Mapping[str, Any]) -> str:
    """Write the reach of a probe, a censored one as a bound.

    Example:
        >>> row = {"first_distance": 24, "last_distance": 179}
        >>> [shown_reach({**row, "reach": reach, "reach_high": 24}) for reach in (179.0, math.nan)]
        ['reach 179+', 'reach <24']
        >>> [shown_reach({**row, "reach": None, "reach_high": high}) for high in (64, None)]
        ['reach <24 to 64', 'reach <24 to 179+']
    """
    known = {name: row[name] for name in (*ENDS, "reach_high") if not math.isnan(row.get(name) or math.nan)}
    end = censored(*map(known.get, ENDS))
    if end != "below":
        bound = known.get("reach")
        return "reach not measured" if bound is None else f"reach {range_of([bound], [CENSORED.get(str(end), RUN)])}"
    bounds, outcomes = [known["first_distance"]], [BELOW]
    if known.get("reach_high") != known["first_distance"]:  # these tests show no number
        bounds.append(known.get("reach_high", row["last_distance"]))
        outcomes.append(RUN if "reach_high" in known else BEYOND)
    return f"reach {range_of(bounds, outcomes)}"


def with_demand(run: Path) -> Iterator[Record]:
    """Read the summaries of probes, each with how its reach is censored and the demand from it on, where counted."""
    for record in with_reach(RunFolder(run).records("probes.jsonl")):
        if "effective_length" not in record:  # the summary of a complete probe has one
            continue
        path = run / f"counts/{folder_name(record['consumed_tokens'])}.npz"
        measured = record.get("reach") is not None and path.exists()
        g_from = SavedCounts.read(path).g_from(int(record["reach"])) if measured else None
        yield {**record, "censored": censored(*map(record.get, ENDS)), "g_from_reach": g_from}


def records_with(run: Path, key: str, columns: Iterable[str]) -> pd.DataFrame:
    return as_table((record for record in RunFolder(run).records("probes.jsonl") if key in record), columns)


def open_run(path: PathLike) -> Run:
    """Open a run folder, which may still be training.

    Raises: CheckpointError for another folder, or a file of it that is not what was written.
    Example:
        lab.open_run("runs/cpu_demo").probes().effective_length
    """
    place = find_place(Path(path))
    if place.is_hugging_face or place.home != place.folder:
        raise CheckpointError(f"{path}: is no run folder; name a folder with config.yaml and probes.jsonl")
    check_files(place.folder, (*READ, *RECORDS))
    return Run(place.folder)


def frame(runs: PathLike | Iterable[PathLike], last: bool = False) -> pd.DataFrame:
    """Return a row per run and probe: `run`, `seed`, `probe`, the settings in which runs differ, the columns of PROBES.

    Seeds probe after a few tokens more or less, but the probes of one number are of one moment.

    `runs` are run folders, tables of runs (.jsonl.xz), or patterns of these such as runs/*, of which other folders are
    left out. With `last` a run has one row, of its last probe. A mean over seeds leaves out those without reach:
    see that `censored` is missing in all.

    Raises: CheckpointError where there is no run.
    Example:
        lab.frame("runs/windows_*", last=True).plot.scatter("data.window", "reach")
    """
    patterns = [str(runs)] if isinstance(runs, (str, os.PathLike)) else list(map(str, runs))
    places = {path for pattern in patterns for path in ([pattern] if Path(pattern).exists() else glob.glob(pattern))}
    with unpacked(list(map(Path, places))) as folders:
        paths = sorted(str(path) for path in folders if (path / "config.yaml").is_file())
        if not paths:
            named = " ".join(patterns) or "runs=[]"
            raise CheckpointError(f"{named}: no run folder there; name folders with a config.yaml, as runs/*")
        return tabulate_probes(paths, last)


def tabulate_probes(paths: list[str], last: bool) -> pd.DataFrame:
    """Return a row per run and probe of run folders."""
    for path in paths:
        check_files(Path(path), ("config.yaml", *RECORDS))
    settings = {path: read_settings(Path(path)) for path in paths}
    apart = [name for name in find_differences(settings) if any(name in values for values in settings.values())]
    rows = []
    for path in paths:
        labels = {"run": Path(path).resolve().name, "seed": settings[path].get("run.seed")}
        labels |= {name: settings[path].get(name) for name in apart}
        probes = [*with_demand(Path(path))]
        numbered = [{**record, **labels, "probe": number} for number, record in enumerate(probes)]
        rows += numbered[-1:] if last else numbered
    return as_table(rows, ["run", "seed", "probe", *apart, *PROBES])


def as_table(records: Iterable[Mapping[str, Any]], columns: Iterable[str] | None = None) -> pd.DataFrame:
    """Build a table of records, with the columns named, in this order, or all."""
    import pandas as pd

    return pd.DataFrame(list(records), columns=None if columns is None else list(columns))
