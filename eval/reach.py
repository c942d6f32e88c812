"""Explain reach by position frequency, demand, tokens, window and rotary base in one regression with limits.

    probe-lab reach RUN [RUN ...] [--option=value ...] [-o FOLDER]

    probe-lab reach runs/mini-*
    probe-lab reach runs/mini-* --last --at=96 -o results

Every probe of every run is a point, or with --last each run's last one. The log of reach is a linear function of six
logs. They are those of f at one distance, the demand from there on, tokens, window, rotary base, and the question's
longest distance in the synthetic corpus (section). Demand is summed, since few targets or none ask for one distance.
One is added to it, so that a run without any has a log. With records from before demand was counted, its column is left
out. A reach at the end of what was tested counts as that far or farther. No reach counts as less than the first
distance (eval/engine/regression.py). Limits are at 95%, from 1,000 resamples of whole runs. Columns that do not differ,
or that follow from others, are named and left out. Models of each column alone, of tokens and window, of none, and of
all are compared. What counts is the log likelihood of runs, and of arms, that were left out of the fit.

Prints the tables; -o writes their rows and the points to reach.jsonl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from eval.engine.command import OF_RUNS, Form, Request, run
from eval.engine.records import ProbedRun, is_run, read_runs, unpacked
from eval.engine.regression import CONFIDENCE, SPARE, Regression, bootstrap, compare, fit, measured, separable
from eval.engine.rows import Found, to_text
from lab.command import start
from lab.counts import SavedCounts, f_at
from lab.errors import DataError
from lab.runs.arms import censored, differing, name_arms
from lab.runs.checkpoints import folder_name
from lab.schema import Positive, Section

DEMAND = "demand+1"
COLUMNS = ("f", DEMAND, "tokens", "window", "theta", "section")  # of two that cannot be told apart, the first is kept
SETTINGS = {"window": "data.window", "theta": "model.theta", "section": "data.corpus.section_tokens"}
REACH = ("reach", "reach_low", "reach_high", "f_at_reach")
RESAMPLES = 1000  # of whole runs, from which limits are taken
FORMS = {"reach": ",.1f", "log likelihood": ".2f"}
FORMS |= dict.fromkeys(("f at reach", "least f", "most f"), ",.0f")
FORMS |= dict.fromkeys(("coefficient", "low", "high", "all less it", "from", "to"), "+.2f")


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


def analyse(request: Request) -> Found:
    """Fit and compare; the rows are those of all tables, and the points."""
    options: ReachOptions = request.options
    with unpacked(request.places) as places:
        runs = read_runs(places)
        settings = {name: run.settings for name, run in runs.items()}
        distance = options.at or min(int(each["data.window"]) for each in settings.values()) // 2
        every = read_points(runs, distance, options)
    known = every[every["f"] > 0].reset_index(drop=True)
    points = known[np.isfinite(known["low"])].reset_index(drop=True) if options.reached else known
    if points.empty:
        raise DataError(f"RUNS: no probe has reach and f at {distance} tokens; name runs that probed and counted")
    columns, faults = separable(points, COLUMNS)
    model = fit(points, columns)
    exact = int(measured(points).sum())
    ends = np.isposinf(points["high"]).sum()
    kinds = f"reach measured in {exact}, the end of what was tested in {ends}, none in {len(points) - exact - ends}"
    parts = [
        f"n = {len(points)} probes of {points['run'].nunique()} runs in {points['arm'].nunique()} arms; {kinds}; "
        f"f at {distance} tokens, without it {len(every) - len(known)} more probes\n"
        f"arms differ in: {', '.join(differing(settings)) or 'nothing'}"
    ]
    tables = {"points": points.set_index("run"), "arms": at_the_reach(known)}
    if model is None:
        rule = f"a regression on {', '.join(columns) or 'nothing'} takes at least {len(columns) + SPARE}"
        parts.append(f"no regression: reach was measured in {exact} probes, and {rule}")
    else:
        limits, fitted = bootstrap(points, model, RESAMPLES)
        tables["coefficients"] = limits
        parts.append(regression_text(limits, model, fitted, faults))
        both = {"tokens, window": ("tokens", "window")} if {"tokens", "window"} <= {*columns} else {}
        models = {"none": (), **{column: (column,) for column in columns}, **both, "all": columns}
        for by in ("run", "arm"):
            tables[f"models by {by}"] = compare(points, models, by)
            parts.append(to_text(tables[f"models by {by}"], FORMS))
    parts.append(f"last probes, geometric means:\n{to_text(tables['arms'], FORMS)}")
    rows = [{"table": name, **row} for name, table in tables.items() for row in table.reset_index().to_dict("records")]
    return request.save("reach", "\n\n".join(parts), rows)


def regression_text(table: pd.DataFrame, model: Regression, fitted: int, faults: Mapping[str, str]) -> str:
    """Write the regression with its limits, and name the columns that are not in it."""
    lines = [f"ln reach = {model.intercept:.2f} + sum of coefficient * ln column; residuals of {model.sigma:.2f} nats"]
    lines += [to_text(table, FORMS)] if len(table) else []
    lines.append(f"{CONFIDENCE:g} limits from {fitted:,} of {RESAMPLES:,} resamples of whole runs")
    if np.isinf(table.to_numpy()).any():
        lines.append("inf: open on that side, where reach was only bounded")
    return "\n".join([*lines, *(f"not in the regression: {column}, {fault}" for column, fault in faults.items())])


def read_points(runs: Mapping[str, ProbedRun], distance: int, options: ReachOptions) -> pd.DataFrame:
    """Make a row for each probe of reach, or each run's last, with f and demand at the distance, nan where unknown.

    `low` and `high` are the bounds of the log of reach: one value where it was measured, the last distance and infinity
    where it is the end, minus infinity and the first distance where it is none.
    """
    arms = name_arms({name: run.settings for name, run in runs.items()})
    rows: list[dict[str, Any]] = []
    for name, each in runs.items():
        about = {"run": name, "arm": arms[name], **{column: each.settings.get(key) for column, key in SETTINGS.items()}}
        probes = [record for record in each.probes if record.get("first_distance") is not None]
        for record in probes[-1:] if options.last else probes:
            tokens = record["consumed_tokens"]
            path = each.path / f"counts/{folder_name(tokens)}.npz"
            counts = SavedCounts.read(path) if path.exists() else None
            demand = None if counts is None else counts.g_from(distance)
            asked = None if demand is None else demand + 1
            rows.append(
                {**record, **about, "tokens": tokens, "f": f_at(counts, distance), DEMAND: asked, **bounds(record)}
            )
    points = pd.DataFrame(rows, columns=["run", "arm", *COLUMNS, "low", "high", *REACH])
    return points.astype(dict.fromkeys((*COLUMNS, "low", "high", *REACH), float))


def bounds(record: Mapping[str, Any]) -> dict[str, float]:
    """Return between which values the log of a probe's reach lies.

    Example:
        >>> bounds({"reach": None, "first_distance": 1, "last_distance": 9})
        {'low': -inf, 'high': 0.0}
        >>> bounds({"reach": 1.0, "first_distance": 1, "last_distance": 1})
        {'low': 0.0, 'high': inf}
    """
    end = censored(record["reach"], record["first_distance"], record["last_distance"])
    bound = float(np.log(record["first_distance"] if end == "below" else record["reach"]))
    return {"low": -np.inf if end == "below" else bound, "high": np.inf if end == "end" else bound}


def at_the_reach(points: pd.DataFrame) -> pd.DataFrame:
    """Lay out reach, and f there, of each arm's last probes: the geometric means of the runs whose reach was measured.

    f at the end of what was tested bounds the f that a reach takes from above: it is no part of the means.
    """
    last = points.groupby("run", sort=False).tail(1)
    exact = measured(last)
    f = last["f_at_reach"].where(exact & (last["f_at_reach"] > 0))
    columns = {"none": np.isneginf(last["low"]), "measured": exact, "the end": np.isposinf(last["high"])}
    logs = {"reach": np.log(last["reach"].where(exact)), "f at reach": np.log(f), "least f": f, "most f": f}
    arms = last.assign(runs=1, **columns, **logs).groupby("arm", sort=False)
    table = arms[["runs", *columns]].sum()
    table[["reach", "f at reach"]] = np.exp(arms[["reach", "f at reach"]].mean())
    return table.assign(**{"least f": arms["least f"].min(), "most f": arms["most f"].max()})


MISSING = "RUN: must come first, the folders of one or more runs; for instance runs/cpu_demo"
FORM = Form(options=ReachOptions, lacks=OF_RUNS, each=False, takes=is_run, missing=MISSING)
main = partial(run, "reach", __doc__, FORM, analyse)


if __name__ == "__main__":
    start(main)
