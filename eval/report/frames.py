"""What a report shows of its runs, as data frames made of the table of their results.

A condition is a set of n runs that differ in nothing but seeds (lab/analysis/conditions.py). Its label leaves out the
settings that most conditions have, which `common` lists; one run alone has its own name.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from eval.engine.text import natural_key
from lab.analysis.conditions import label_conditions, shorten_names
from lab.analysis.run import list_contexts
from lab.analysis.table import Table, check_runs, read_table
from lab.core.chart_style import CENSORED, MEAN, RUN
from lab.core.types import Row
from lab.counts import SavedCounts
from lab.counts.saved import per_distance
from lab.probe.reach import classify_reach
from lab.results.statistics import SHARES, mean_with_limits
from lab.runs.folder import RunFolder

ENDS = {"reach": ("first_distance", "last_distance"), "effective_length": ("first_length", "last_length")}
LIMITS = {"reach": ("reach_low", "reach_high"), "effective_length": ("low", "high")}
REACH = ["reach", *LIMITS["reach"], *ENDS["reach"], "f_at_reach", "g_from_reach"]
LENGTH = ["effective_length", "low", "high", *ENDS["effective_length"], "f_at_effective_length", "held_out_loss"]
BINS = 80  # of consumed tokens, in a curve of the training loss
FEWEST_SEEDS = 3  # that have limits: those of two fill a figure
FRAMES = {  # columns of the frames, in addition to condition and run
    "runs": ["seed", "window", "tokens", *REACH, *LENGTH],
    "losses": ["kind", "bin", "tokens", "loss"],
    "probes": ["probe", "tokens", *REACH, *LENGTH],
    "reaches": ["method", *REACH, "n"],
    "distances": ["method", "distance", "score", "low", "high", "n", "f", "log_prob"],
    "frequency": ["profile", "distance", "per distance"],
    "contexts": ["context", "loss"],
    "gains": ["distance", "middle", "gain", "low", "high", "n"],
}


class Runs(NamedTuple):
    """The frames; the settings of every run by name; what all figures share.

    A row of `runs` is a run with its last reach and effective length, of `probes` one of training's probes. `losses`
    are of training, a mean over each of BINS parts, and on held-out text at every probe. `reaches` and `distances` are
    those under each position method, and with `contexts` and `gains` those at the last probe. `frequency` has f(i), and
    g(d) where it was counted, by bins of distances.

    `conditions` are in the order of their settings, as the runs are, `methods` plain first, then by name and
    parameters. `thresholds` are those of all probes.
    """

    runs: pd.DataFrame
    losses: pd.DataFrame
    probes: pd.DataFrame
    reaches: pd.DataFrame
    distances: pd.DataFrame
    frequency: pd.DataFrame
    contexts: pd.DataFrame
    gains: pd.DataFrame
    settings: Mapping[str, Row]
    conditions: list[str]
    methods: list[str]
    thresholds: set[float]
    common: str


def read_runs(places: Sequence[Path]) -> Runs:
    """Read run folders, rejecting what is none, has the name of another, or is broken."""
    check_runs(places)
    table = read_table(places)
    short, common = shorten_names({run: condition.name for run, condition in table.conditions.items()})
    labels = label_conditions(table.conditions, short)
    # Runs of a condition follow one another, with the numbers in the names of conditions rising.
    order = sorted(labels, key=lambda run: natural_key(short[run]))
    rows: dict[str, list[Row]] = defaultdict(list)
    for run in order:
        for kind, of_run in collect_rows(table, run).items():
            for row in of_run:
                rows[kind].append({**row, "condition": labels[run], "run": Path(run).name})
    frames = {}
    for kind, columns in FRAMES.items():
        frames[kind] = pd.DataFrame(rows[kind]).reindex(columns=["condition", "run", *columns])
    # The same method may have been evaluated before, with fewer and with more tests.
    frames["reaches"] = select_most_tested(frames["reaches"], ["run", "method"])
    frames["distances"] = select_most_tested(frames["distances"], ["run", "method", "distance"])
    methods = {*frames["distances"]["method"], *frames["reaches"]["method"]}
    return Runs(
        **frames,
        settings={Path(run).name: settings for run, settings in table.settings.items()},
        conditions=frames["runs"]["condition"].unique().tolist(),
        methods=sorted(methods, key=lambda name: (name != "plain", natural_key(name))),
        thresholds={settings.get("probe.threshold", 0.8) for settings in table.settings.values()},
        common=common,
    )


def collect_rows(table: Table, run: str) -> dict[str, Sequence[Row]]:
    """List a run's rows of every frame; an evaluation's reach replaces it where training did not probe it."""
    results = table.rows[(table.rows.run == run) & table.rows.measure.isin(["probe", "distance"])]
    # Later rows take the place of earlier ones, so that the order of writing counts, training's first.
    written = [(file.name != "probes.jsonl", file.stat().st_mtime_ns, file.name) for file in results.file]
    results = results.assign(written=written).sort_values("written", kind="stable")
    is_own = pd.Series([file.name == "probes.jsonl" for file in results.file], results.index, dtype=bool)
    probes: dict[int, Row] = {}
    for result in results[is_own].itertuples():
        if "effective_length" in result.record:
            probe = probes.setdefault(result.tokens, {**result.record, "tokens": result.tokens, "probe": len(probes)})
            if result.metric.startswith("reach"):
                probe["g_from_reach"] = result.g
    # Evaluations of earlier checkpoints are excluded: the page shows the run at its end.
    tokens = max(probes or results.tokens.dropna().tolist(), default=0)
    last = results[results.tokens == tokens]
    method = last.method.fillna("rope+plain").str.removeprefix("rope+")
    reaches = []
    for result, name in zip(last.itertuples(), method, strict=True):
        if result.metric.startswith("reach"):
            reaches.append({**result.record, "method": name, "g_from_reach": result.g})
    probe = probes.get(int(tokens), {})
    reach: Row = {}
    for row in reaches:
        if row["method"] == "plain":
            reach = row
    if "reach" in probe:
        reach = probe
    settings = table.settings[run]
    about = {"seed": settings.get("run.seed"), "window": settings.get("data.window"), "tokens": tokens or None}
    counts = Path(run) / "counts.npz"
    return {
        "runs": [about | {key: reach.get(key) for key in REACH} | {key: probe.get(key) for key in LENGTH}],
        "losses": list_losses(Path(run), [*probes.values()]),
        "probes": [*probes.values()],
        "reaches": reaches,
        "distances": list_distances(last.assign(method=method)),
        "frequency": per_distance(SavedCounts.read(counts).profiles()) if counts.exists() else [],
        "contexts": list(list_contexts(probe)),
        "gains": [{**row, "gain": row["score"]} for row in probe.get("recall", [])],
    }


def list_losses(run: Path, probes: Sequence[Row]) -> list[Row]:
    """List the training loss, a mean over each part of the run, and the held-out loss of every probe."""
    logged = [row for row in RunFolder(run).records("metrics.jsonl") if row.get("loss") is not None]
    # A run logs thousands of steps: means of equal parts keep the page small.
    size = math.ceil(len(logged) / BINS) or 1
    rows: list[Row] = []
    for start in range(0, len(logged), size):
        part = pd.DataFrame(logged[start : start + size])
        tokens, loss = float(part["consumed_tokens"].mean()), float(part["loss"].mean())
        rows.append({"kind": "training", "bin": len(rows), "tokens": tokens, "loss": loss})
    for probe in probes:
        if probe.get("held_out_loss") is not None:
            tokens, loss = float(probe["tokens"]), float(probe["held_out_loss"])
            rows.append({"kind": "held out", "bin": len(rows), "tokens": tokens, "loss": loss})
    return rows


def list_distances(last: pd.DataFrame) -> list[Row]:
    """List accuracies by distance, of each method those whose tests are those of its last row."""
    newest: dict[str, Any] = {}
    rows = []
    for row in last[last.distance.notna() & (last.unit == "share")].itertuples():
        tests = [row.record.get(name) for name in ("digits", "prompt_tokens", "haystack", "seed")]
        newest[row.method] = tests
        rows.append(({**row.record, "method": row.method}, tests))
    return [row for row, tests in rows if tests == newest[row["method"]]]


def select_most_tested(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Keep of rows about the same thing the one with most tests, of equals the last."""
    rising = rows.sort_values("n", kind="stable", key=lambda tests: tests.fillna(0))
    return rising.drop_duplicates(by, keep="last").sort_index(ignore_index=True)


def fold_runs(rows: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """Fold the runs of a condition: `mean` of a value, `count`, limits `low`, `high`; of one run those of its row."""
    groups = rows.dropna(subset=[value]).groupby([*by], sort=False)
    lists = groups[value].agg(list).reset_index()
    # Limits of shares lie within 0 and 1.
    ends = SHARES if value == "score" else None
    means = [mean_over_seeds(values, ends) for values in lists[value]]
    limits = pd.DataFrame(means, columns=["mean", "low", "high"])
    folds = lists[[*by]].assign(**limits, count=lists[value].map(len).astype(int))
    for limit in {"low", "high"} & {*rows}:
        # One run has no limits over seeds; those of its own tests stand in for them.
        folds[limit] = folds[limit].where(folds["count"] > 1, groups[limit].first().reset_index()[limit].astype(float))
    return folds


def mean_over_seeds(values: Sequence[float], ends: tuple[float, float] | None = None) -> tuple[float, float, float]:
    """Return the mean over seeds, with limits where there are enough of them that differ."""
    mean, low, high = mean_with_limits(values, ends=ends)
    if len(values) < FEWEST_SEEDS:
        low = high = math.nan
    return mean, low, high


def fold_accuracies(rows: pd.DataFrame) -> pd.DataFrame:
    """Fold seeds: the mean accuracy with limits over seeds; of one run, the limits of its tests."""
    by = ["condition", "method", "distance"]
    mean = fold_runs(rows, by, "score").rename(columns={"mean": "share", "count": "runs"})
    one = rows.dropna(subset=["score"]).groupby(by, sort=False).agg({"f": "mean", "n": "sum"}).reset_index()
    f = one["f"].astype(float).round()  # of rows without any it is a column of objects, which no page can hold
    return mean.assign(f=f, tests=one["n"])


def list_outcomes(rows: pd.DataFrame, value: str = "reach") -> pd.DataFrame:
    """Keep the tested runs: the outcome of each (lab.core.chart_style), and the value, a censored one at its bound."""
    ends = [classify_reach(*row) for row in rows[[value, *ENDS[value]]].itertuples(index=False)]
    names = [CENSORED.get(str(end), RUN) for end in ends]
    filled = rows[value].astype(float).fillna(rows[ENDS[value][0]].astype(float))
    return rows.assign(**{value: filled}, outcome=names)[filled.notna()]


def fold_reaches(rows: pd.DataFrame, by: Sequence[str], value: str = "reach") -> pd.DataFrame:
    """Fold the runs of each group into a point: their mean with limits; where a run is censored, a point for each run.

    The limits of a group of one run are those of its tests, which end at the first and last distance. `runs` is how
    many runs a point represents, `of` those of its group.
    """
    points = []
    for key, group in list_outcomes(rows, value).groupby([*by], sort=False):
        n = len(group)
        about = {**dict(zip(by, key, strict=True)), "of": n}
        # A mean that includes a bound would be no estimate of reach.
        if n > 1 and (group["outcome"] == RUN).all():
            mean, low, high = mean_over_seeds(group[value].tolist())
            point = {value: mean, "low": np.maximum(low, 0), "high": high, "runs": n, "outcome": MEAN}
            points.append({**about, **point})
            continue
        for row in group.to_dict("records"):
            point = {value: row[value], "low": np.nan, "high": np.nan, "runs": 1, "outcome": row["outcome"]}
            if n == 1:
                for side, limit, end in zip(("low", "high"), LIMITS[value], ENDS[value], strict=True):
                    point[side] = row[end] if pd.isna(row.get(limit)) else row[limit]
            points.append({**about, **point})
    table = pd.DataFrame(points, columns=[*by, value, "low", "high", "runs", "of", "outcome"])
    return table.astype({"low": float, "high": float})
