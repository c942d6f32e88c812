"""Explain reach by position frequency, tokens, window and rotary base in one regression with limits.

    python -m eval.reach RUN [RUN ...] [--option=value ...] [-o FOLDER] [--plot]

    python -m eval.reach runs/mini-*
    python -m eval.reach runs/mini-* --last --at=96 -o results --plot

Every probe of every run is a point, or with --last each run's last one. ln reach is a linear function of ln f at one
distance, ln tokens, ln window, ln of the rotary base, and ln of the question's longest distance in the synthetic corpus
(section). A reach at the end of what was tested counts as that far or farther, and none as below the first distance
(eval/engine/regression.py). Limits come from resampling whole runs. Columns that do not differ, or that follow from
others, are named and left out. Models of each column alone, of none and of all are compared by the log likelihood of
runs, and of arms, that were left out of the fit.

Prints the tables; -o writes them as coefficients.csv, models-by-run.csv, models-by-arm.csv, arms.csv and points.csv;
--plot adds reach.png, measured against predicted reach.
Exit status: 0 done; 2 a mistake in the input, one line each on stderr.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from annotated_types import Ge, Gt, Lt
from scipy.special import ndtri

from eval.engine.command import Form, Request, run
from eval.engine.records import unpacked
from eval.engine.regression import SPARE, Regression, bootstrap, compare, fit, inflation, measured, separable
from eval.engine.rows import Found, to_text
from lab.command import start
from lab.counts import SavedCounts, f_at
from lab.draw import GREY, draw, layer, save
from lab.errors import ConfigError, DataError
from lab.files import write_atomic, writing
from lab.schema import NonNegative, Positive, Section
from lab.train.arms import differing, name_arms, read_settings
from lab.train.checkpoints import folder_name
from lab.train.folder import RunFolder

COLUMNS = ("f", "tokens", "window", "theta", "section")  # of two that cannot be told apart, the first is kept
SETTINGS = {"window": "data.window", "theta": "model.theta", "section": "data.corpus.section_tokens"}
Settings = Mapping[str, dict[str, Any]]
REACH = ("reach", "reach_low", "reach_high", "f_at_reach")
FORMS = {"reach": ",.1f", "log likelihood": ".2f", "R2 of others": ".3f"}
FORMS |= dict.fromkeys(("f at reach", "least f", "most f"), ",.0f")
FORMS |= dict.fromkeys(("coefficient", "all less it", "from", "to"), "+.2f")


@dataclass(frozen=True, kw_only=True)
class ReachOptions(Section):
    """Options of this command."""

    at: Positive | None = None
    """Distance in tokens at which f is read; left out, half of the smallest window."""
    last: bool = False
    """Read each run's last probe only."""
    reached: bool = False
    """Leave out probes without reach, of models that find nothing at any distance yet: how far reach goes once there is
    one, whenever it began. This selects by what is explained."""
    resamples: Annotated[int, Ge(100)] = 1000
    """Resamples of whole runs from which limits are taken."""
    confidence: Annotated[float, Gt(0), Lt(1)] = 0.95
    """Probability of the limits."""
    seed: NonNegative = 0
    """Seed of the resamples."""


def analyse(runs: Sequence[Path], options: ReachOptions, folder: Path | None, *, plots: bool) -> Found:
    """Fit, compare and write down; the rows are those of all tables.

    Raises: LabError.
    """
    settings = read_all(runs)
    distance = options.at or min(int(each["data.window"]) for each in settings.values()) // 2
    every, without = read_points(runs, settings, distance, last=options.last)
    points = every[np.isfinite(every["low"])].reset_index(drop=True) if options.reached else every
    if points.empty:
        raise DataError(f"RUNS: no probe has reach and f at {distance} tokens; name runs that probed and counted")
    tables = {"arms": at_the_reach(every), "points": points.set_index("run")}
    columns, faults = separable(points, COLUMNS)
    model = fit(points, columns)
    ends, none = np.isposinf(points["high"]).sum(), np.isneginf(points["low"]).sum()
    n = f"n = {len(points)} probes of {points['run'].nunique()} runs in {points['arm'].nunique()} arms"
    kinds = f"reach measured in {measured(points).sum()}, the end of what was tested in {ends}, none in {none}"
    heads = [f"{n}; {kinds}; f at {distance} tokens, without it {without} more probes"]
    parts = ["\n".join([*heads, f"arms differ in: {', '.join(differing(settings)) or 'nothing'}"])]
    if model is None:
        rule = f"a regression on {', '.join(columns) or 'nothing'} takes at least {len(columns) + SPARE}"
        parts.append(f"no regression: reach was measured in {measured(points).sum()} probes, and {rule}")
    else:
        limits, fitted = bootstrap(points, model, options.resamples, options.confidence, options.seed)
        slopes = limits.assign(**{"coefficient": model.reported, "R2 of others": inflation(points, model.columns)})
        tables["coefficients"] = slopes[["coefficient", "low", "high", "R2 of others"]].rename_axis("column")
        parts.append(regression_text(tables["coefficients"], model, fitted, faults, options))
        models = {"none": (), **{column: (column,) for column in columns}, "all": columns}
        for by in ("run", "arm"):
            tables[f"models-by-{by}"] = compare(points, models, by)
            parts.append(to_text(tables[f"models-by-{by}"], FORMS))
    parts.append("\n".join(["last probes, geometric means:", to_text(tables["arms"], FORMS), one_f(tables["arms"])]))
    if folder is not None:
        with writing(f"-o {folder}", "folder"):
            folder.mkdir(parents=True, exist_ok=True)
            for name, table in tables.items():
                write_atomic(folder / f"{name}.csv", table.to_csv().encode())
        parts.append(f"tables: {', '.join(f'{name}.csv' for name in tables)}")
    picture = (folder or Path("runs")) / "reach.png" if plots and model is not None else None
    if picture is not None and model is not None:
        draw_reach(points, model, options.confidence, picture)
    rows = [{"table": name, **row} for name, table in tables.items() for row in table.reset_index().to_dict("records")]
    return Found("\n\n".join(parts), rows, folder, picture)


def regression_text(
    table: pd.DataFrame, model: Regression, fitted: int, faults: dict[str, str], options: ReachOptions
) -> str:
    """Write the regression with its limits, and name the columns that are not in it."""
    lines = [f"ln reach = {model.intercept:.2f} + sum of coefficient * ln column; residuals of {model.sigma:.2f} nats"]
    if len(table):
        lines.append(to_text(table, FORMS | {"low": "+.2f", "high": "+.2f"}))
    lines.append(f"{options.confidence:g} limits from {fitted:,} of {options.resamples:,} resamples of whole runs")
    if np.isinf(table.to_numpy()).any():
        lines.append("inf: open on that side, where reach was only bounded")
    return "\n".join([*lines, *(f"not in the regression: {column}, {fault}" for column, fault in faults.items())])


def one_f(arms: pd.DataFrame) -> str:
    """Compare f at the reach between arms."""
    known = arms["f at reach"].dropna()
    if len(known) < 2:
        return f"one f for all arms: unknown, reach was measured in {len(known)} of {len(arms)} arms"
    ratio = f"the largest mean is {known.max() / known.min():.3g} times the smallest"
    spread = f"of single runs {arms['most f'].max() / arms['least f'].min():.3g} times"
    return f"one f for all arms? {ratio}, {spread}; {len(known)} of {len(arms)} arms"


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
    for place, name in zip(runs, settings, strict=True):
        about = {"run": name, "arm": arms[name]} | {column: settings[name].get(key) for column, key in SETTINGS.items()}
        rows += [about | row for row in list(probes_of(place, distance))[-1 if last else None :]]
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


def draw_reach(points: pd.DataFrame, model: Regression, confidence: float, output: Path) -> None:
    """Draw measured against predicted reach: every probe, the line of equality and the limits of a new probe.

    Raises: MissingPackage without Altair, ConfigError where the picture cannot be written.
    """
    exact = measured(points)
    bound = np.where(np.isfinite(points["low"]), points["low"], points["high"])
    kinds = np.where(exact, "measured", np.where(np.isposinf(points["high"]), "that far or farther", "less"))
    shown = points.assign(predicted=np.exp(model.predict(points)), shown=np.exp(bound), kind=kinds)
    limits = {side: shown[f"reach_{side}"].fillna(shown["shown"]).where(exact) for side in ("low", "high")}
    titles: dict[str, Any] = {"x_title": f"reach predicted from {', '.join(model.columns) or 'nothing'} (tokens)"}
    titles["y_title"] = "reach (tokens)"
    ends = np.array([shown[["predicted", "shown"]].min().min(), shown[["predicted", "shown"]].max().max()])
    width = np.exp(model.sigma * ndtri((1 + confidence) / 2))
    line = pd.DataFrame({"predicted": ends, "equal": ends, "from": ends / width, "to": ends * width})
    bars: dict[str, Any] = {"low": "low", "high": "high", "kind": "point", "shape": "kind"}
    marks = draw(shown.drop(columns=["low", "high"]).assign(**limits), "predicted", "shown", "arm", **bars, **titles)
    equal = draw(line, "predicted", "equal", low="from", high="to", color=GREY, marks=False, **titles)
    save(layer(equal, marks), output)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""

    def work(request: Request) -> Found:
        with unpacked(request.places) as runs:
            return analyse(runs, request.options, request.folder, plots=request.plots)

    missing = "RUN: must come first, the folders of one or more runs; for instance runs/cpu_demo"
    form = Form(options=ReachOptions, lacks=("--distance", "--frequency"), each=False, missing=missing)
    return run("eval.reach", __doc__, form, work, arguments)


if __name__ == "__main__":
    start(main)
