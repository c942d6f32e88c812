"""Explain reach by position frequency, tokens, window and rotary base in one regression with limits.

    python -m eval.reach RUN [RUN ...] [--option=value ...] [-o FOLDER] [--plot]

    python -m eval.reach runs/mini-*
    python -m eval.reach runs/mini-* --last --at=96 -o results --plot

Every probe of every run is a point, or with --last each run's last one. ln reach is a linear function of ln f, at one
distance, ln tokens, ln window, ln of the rotary base and ln of the question's longest distance in the synthetic corpus
(section). A reach that is the end of what was tested counts as that far or farther, and none as below the first
distance (eval/reach/regression.py). Limits come from resampling whole runs (eval/reach/resampling.py). Columns that do
not differ, or that follow from others, are named and left out. Each column alone, none and all are compared by the log
likelihood of runs, and of arms, that were left out of the fit.

Prints the tables; -o writes them as coefficients.csv, models-by-run.csv, models-by-arm.csv, arms.csv and points.csv;
--plot adds reach.png, measured against predicted reach.
Exit status: 0 done; 2 a mistake in the input, one line each on stderr.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from annotated_types import Ge, Gt, Lt

from eval.engine.command import NO_MODEL, Form, Request, run
from eval.engine.records import unpacked
from eval.engine.rows import Found
from eval.engine.table import to_text
from eval.reach.picture import draw_reach
from eval.reach.points import COLUMNS, at_the_reach, read_all, read_points
from eval.reach.regression import SPARE, Regression, fit, inflation, measured, separable
from eval.reach.resampling import Limits, bootstrap, compare
from lab.command import start
from lab.errors import DataError
from lab.files import write_atomic, writing
from lab.schema import NonNegative, Positive, Section
from lab.train.arms import differing

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
    heads = [
        describe(points, distance, without),
        f"arms differ in: {', '.join(differing(settings)) or 'nothing'}",
    ]
    parts = ["\n".join(heads)]
    if model is None:
        rule = f"a regression on {', '.join(columns) or 'nothing'} takes at least {len(columns) + SPARE}"
        parts.append(f"no regression: reach was measured in {measured(points).sum()} probes, and {rule}")
    else:
        limits = bootstrap(points, model, options.resamples, options.confidence, options.seed)
        tables["coefficients"] = coefficients(points, model, limits)
        parts.append(regression_text(tables["coefficients"], model, limits, faults, options))
        models = {"none": (), **{column: (column,) for column in columns}, "all": columns}
        for by in ("run", "arm"):
            tables[f"models-by-{by}"] = compare(points, models, by)
            parts.append(to_text(tables[f"models-by-{by}"], FORMS))
    parts.append("\n".join(["last probes, geometric means:", to_text(tables["arms"], FORMS), one_f(tables["arms"])]))
    if folder is not None:
        write(tables, folder)
        parts.append(f"tables: {', '.join(f'{name}.csv' for name in tables)}")
    picture = (folder or Path("runs")) / "reach.png" if plots and model is not None else None
    if picture is not None and model is not None:
        draw_reach(points, model, options.confidence, picture)
    rows = [{"table": name, **row} for name, table in tables.items() for row in table.reset_index().to_dict("records")]
    return Found("\n\n".join(parts), rows, folder, picture)


def describe(points: pd.DataFrame, distance: int, without: int) -> str:
    """Count the points."""
    ends, none = np.isposinf(points["high"]).sum(), np.isneginf(points["low"]).sum()
    n = f"n = {len(points)} probes of {points['run'].nunique()} runs in {points['arm'].nunique()} arms"
    kinds = f"reach measured in {measured(points).sum()}, the end of what was tested in {ends}, none in {none}"
    return f"{n}; {kinds}; f at {distance} tokens, without it {without} more probes"


def coefficients(points: pd.DataFrame, model: Regression, limits: Limits) -> pd.DataFrame:
    """Lay out the coefficients; `R2 of others` is the share of the column that the others explain."""
    others = inflation(points, model.columns)
    rows = [
        {"column": c, "coefficient": slope, "low": limits.low[c], "high": limits.high[c], "R2 of others": others[c]}
        for c, slope in model.reported.items()
    ]
    return pd.DataFrame(rows, columns=["column", "coefficient", "low", "high", "R2 of others"]).set_index("column")


def regression_text(
    table: pd.DataFrame, model: Regression, limits: Limits, faults: dict[str, str], options: ReachOptions
) -> str:
    """Write the regression with its limits, and name the columns that are not in it."""
    lines = [f"ln reach = {model.intercept:.2f} + sum of coefficient * ln column; residuals of {model.sigma:.2f} nats"]
    if len(table):
        lines.append(to_text(table, FORMS | {"low": "+.2f", "high": "+.2f"}))
    lines.append(
        f"{options.confidence:g} limits from {limits.fitted:,} of {options.resamples:,} resamples of whole runs"
    )
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


def write(tables: dict[str, pd.DataFrame], folder: Path) -> None:
    """Write the tables.

    Raises: ConfigError where that cannot be done.
    """
    with writing(f"-o {folder}", "folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            write_atomic(folder / f"{name}.csv", table.to_csv().encode())


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""

    def work(request: Request) -> Found:
        with unpacked(request.places) as runs:
            return analyse(runs, request.options, request.folder, plots=request.plots)

    missing = "RUN: must come first, the folders of one or more runs; for instance runs/cpu_demo"
    form = Form(options=ReachOptions, refused=NO_MODEL, each=False, missing=missing)
    return run("eval.reach", __doc__, form, work, arguments)


if __name__ == "__main__":
    start(main)
