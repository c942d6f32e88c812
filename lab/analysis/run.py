"""Runs in Python: position frequency, tables and a picture of a run folder, and one table of many runs.

`lab.open_run` and `lab.frame` are these functions:

    run = lab.open_run("runs/cpu_demo")
    run.f()[96], run.g()[96], run.probes(), run.metrics(), run.plot()
    lab.frame("runs/*", last=True).pivot(index="data.window", columns="seed", values="reach")

A value that was not measured is missing in a table. An effective length is missing where the first length fails, a high
limit where the true value may lie beyond the last length. A reach is missing, and `censored` is below, where the first
distance fails, or reach is not determined (lab/probe/reach.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from lab.analysis.conditions import condition_settings, find_differences, read_run_settings
from lab.analysis.table import measure_reach, read_probes, read_result_table, unpacked
from lab.core.chart import Axis, Rule, concat, plot_lines, save_chart
from lab.core.errors import CheckpointError
from lab.core.types import FloatArray, IntArray, Row
from lab.counts import SavedCounts
from lab.counts.saved import per_distance
from lab.data.text_files import expand_pattern
from lab.probe.reach import format_reach
from lab.runs.checkpoints import READ, RECORDS, check_files, folder_name
from lab.runs.folder import RunFolder
from lab.runs.source import find_place

if TYPE_CHECKING:
    import pandas as pd


PathLike = str | os.PathLike[str]
# The columns of the tables; docs/api.md has their meanings.
PROBES = (
    *("consumed_tokens", "effective_length", "threshold", "low", "high", "smooth", "first_length"),
    *("f_at_effective_length", "reach", "reach_low", "reach_high", "censored", "dips", "first_distance"),
    *("last_distance", "f_at_reach", "g_from_reach", "held_out_loss", "bits_per_byte", "tests", "protocol", "method"),
)
LENGTHS = ("consumed_tokens", "length", "tests", "passed", "accuracy", "low", "high", "f", "method")
DISTANCES = ("consumed_tokens", "distance", "n", "found", "score", "low", "high", "log_prob", "f", "method")
CONTEXTS = ("consumed_tokens", "context", "loss")
RECALL = (
    *("consumed_tokens", "distance", "last", "middle", "n", "documents", "nats_whole", "nats_cut"),
    *("score", "low", "high", "method"),
)


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

        It is that of the layers of a kind (`model.layers`); default: of those that encode most relative positions.

        Shapes: f[i] of relative position i, int64 (window,).
        Raises: CheckpointError for a run that has counted nothing there, or has no layers of the kind.
        """
        counts = self.counts(consumed_tokens)
        if kind is None:
            return counts.f
        if kind not in counts.kinds:
            rule = f"its layers are {', '.join(counts.kinds) or 'all full'}"
            raise CheckpointError(f"kind={kind}: {self.path} has no such layers, {rule}; use another or leave it out")
        return counts.kinds[kind]

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
        """Return one row per probe of training: the columns of PROBES, and of a mixture those of `add_corpora`."""
        return add_corpora(list(read_probes(self.path)), PROBES)

    def lengths(self) -> pd.DataFrame:
        """Return one row per probe of training and length, with the columns of LENGTHS."""
        return records_with(self.path, "length", LENGTHS)

    def distances(self) -> pd.DataFrame:
        """Return one row per probe of training and distance, with the columns of DISTANCES."""
        return records_with(self.path, "distance", DISTANCES)

    def contexts(self) -> pd.DataFrame:
        """Return the held-out loss by visible context, a row per probe of training and context, columns CONTEXTS."""
        rows = []
        for probe in RunFolder(self.path).probes():
            for context, loss in probe.get("context_loss", {}).items():
                rows.append({"consumed_tokens": probe["consumed_tokens"], "context": int(context), "loss": loss})
        return as_table(rows, CONTEXTS)

    def recall(self) -> pd.DataFrame:
        """Return the gain from evidence, a row per probe of training and bin of distances, columns RECALL."""
        rows = []
        for probe in RunFolder(self.path).probes():
            for bin_of_distances in probe.get("recall", ()):
                rows.append({**probe, **bin_of_distances})
        return as_table(rows, RECALL)

    def plot(self, output: PathLike | None = None) -> Picture:
        """Draw what a run has recorded, to picture.png in the run folder if no other file is named.

        Shares found by distance come first, and the last reach. Then come accuracy by length, training loss, f with g,
        held-out loss by visible context, and the gain from evidence.

        Raises: MissingPackage; CheckpointError for a run that has counted nothing.
        """
        profiles, probes, contexts = self.counts().profiles(), self.probes(), self.contexts()
        last = probes.iloc[-1].to_dict() if len(probes) else {}
        share = partial(Axis, limits=(0, 1), percent=True)
        distance, loss = Axis("distance", "tokens"), Axis("loss")
        tested = {"rules": [Rule("y", last.get("threshold", 0.8), "threshold")]}
        lines: Row = {"marks": False}
        # Rows, the axes, the title, and what is not usual of each chart.
        charts: list[tuple[pd.DataFrame, Axis, Axis, str, Row]] = [
            (self.distances(), distance, share("score"), f"accuracy by distance: {format_reach(last)}", tested),
            (self.lengths(), Axis("length", "tokens"), share("accuracy"), "tests passed by length", tested),
            (
                self.metrics(),
                Axis("consumed_tokens", "tokens"),
                loss,
                "training loss, nats per token",
                {**lines, "series": None},
            ),
            (
                as_table(per_distance(profiles)),
                distance._replace(log=True),
                Axis("per distance", log=True),
                "position frequency and demand by distance",
                {**lines, "series": "profile", "names": list(profiles)},
            ),
            (
                contexts[contexts["context"] > 0],  # a logarithmic axis has no 0
                Axis("context", "tokens", log=True),
                loss,
                "held-out loss by visible context, nats per token",
                lines,
            ),
            (
                self.recall(),
                Axis("middle", "tokens", log=True),
                Axis("score"),
                "gain by distance of the evidence, nats",
                lines,
            ),
        ]
        plots = []
        for rows, x, y, title, options in charts:
            if len(rows):
                plots.append(
                    plot_lines(rows, x, y, **{"series": "consumed_tokens", "title": title, **options}, width=280)
                )
        picture = Picture(self.path / "picture.png" if output is None else Path(output))
        save_chart(concat(*plots, columns=3, title=self.path.resolve().name), picture.path)
        return picture


def records_with(run: Path, key: str, columns: Iterable[str]) -> pd.DataFrame:
    return as_table([record for record in RunFolder(run).records("probes.jsonl") if key in record], columns)


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

    Seeds probe after a few tokens more or less, but the probes of one number are of one moment. If a run's probes have
    no reach, its last one has that of probe-lab distance.

    `runs` are run folders, tables of runs (.jsonl.xz), or patterns of these such as runs/*, of which other folders are
    skipped. With `last` a run has one row, of its last probe. A mean over seeds omits those without reach:
    see that `censored` is missing in all.

    Raises: CheckpointError where there is no run.
    Example:
        lab.frame("runs/windows_*", last=True).plot.scatter("data.window", "reach")
    """
    patterns = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    found = {*chain.from_iterable(expand_pattern(Path(pattern)) for pattern in patterns)}
    with unpacked(list(found)) as folders:
        settings = {}
        for path in sorted(map(str, folders)):
            if (Path(path) / "config.yaml").is_file():
                check_files(Path(path), ("config.yaml", *RECORDS))
                settings[path] = read_run_settings(Path(path))
        if not settings:
            named = " ".join(map(str, patterns)) or "runs=[]"
            raise CheckpointError(f"{named}: no run folder there; name folders with a config.yaml, as runs/*")
        return tabulate_probes(settings, last)


def tabulate_probes(settings: Mapping[str, Row], last: bool = False) -> pd.DataFrame:
    """Tabulate the probes of runs, as `frame` returns them, by the settings of each run's path."""
    names = find_differences(condition_settings(settings))
    rows = []
    for run, own in settings.items():
        labels = {"run": Path(run).name, "seed": own.get("run.seed"), **{name: own.get(name) for name in names}}
        probes = [{**probe, **labels, "probe": number} for number, probe in enumerate(read_probes(Path(run)))]
        if probes and not probes[-1].get("first_distance"):
            path = Path(run).resolve()
            probes[-1] |= measure_reach(read_result_table([path]), str(path)) or {}
        rows += probes[-1:] if last else probes
    return add_corpora(rows, ["run", "seed", "probe", *names, *PROBES])


def add_corpora(probes: Sequence[Row], columns: Iterable[str]) -> pd.DataFrame:
    """Build a table of probes, with `corpus_tokens` and `held_out_losses` if any run has a mixture."""
    return as_table(probes, [*columns, *sorted({"corpus_tokens", "held_out_losses"}.intersection(chain(*probes)))])


def as_table(records: Iterable[Row], columns: Iterable[str] | None = None) -> pd.DataFrame:
    """Build a table of records, with the columns named, in this order, or all."""
    import pandas as pd

    return pd.DataFrame(list(records), columns=None if columns is None else list(columns))
