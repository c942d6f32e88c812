"""What a report shows of its runs, as data frames made of the table of their results.

A condition is a set of n runs that differ in nothing but seeds (lab/analysis/conditions.py). Its label leaves out the
settings that most conditions have, which `common` lists; one run alone has its own name.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from eval.engine.text import natural_key
from lab.analysis.conditions import label_conditions, shorten_names
from lab.analysis.run import list_contexts
from lab.analysis.table import ResultTable, check_runs, read_result_table
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
FEWEST_SEEDS = 3  # that have limits: those of two fill a figure


class Runs(NamedTuple):
    """The frames; the settings of every run by name; what all figures share.

    A row of `runs` is a run with its last reach and effective length, of `probes` one of training's probes. `losses`
    are of training, a mean over each eightieth, and on held-out text at every probe. `reaches` and `distances` are
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
    table = read_result_table(places)
    short, common = shorten_names({run: condition.name for run, condition in table.conditions.items()})
    labels = label_conditions(table.conditions, short)
    rows: dict[str, list[Row]] = defaultdict(list)
    # Runs of a condition follow one another, with the numbers in the names of conditions rising.
    for run in sorted(labels, key=lambda run: natural_key(short[run])):
        for name, of_run in collect_rows(table, run).items():
            rows[name] += [{**row, "condition": labels[run], "run": Path(run).name} for row in of_run]
    frames = {}
    frame_columns = {  # in addition to condition and run
        "runs": ["seed", "window", "tokens", *REACH, *LENGTH],
        "losses": ["kind", "bin", "tokens", "loss"],
        "probes": ["probe", "tokens", *REACH, *LENGTH],
        "reaches": ["method", *REACH, "n"],
        "distances": ["method", "distance", "score", "low", "high", "n", "f", "log_prob"],
        "frequency": ["profile", "distance", "per distance"],
        "contexts": ["context", "loss"],
        "gains": ["distance", "middle", "gain", "low", "high", "n"],
    }
    for name, columns in frame_columns.items():
        frames[name] = pd.DataFrame(rows[name]).reindex(columns=["condition", "run", *columns])
    for name, by in {"reaches": ["run", "method"], "distances": ["run", "method", "distance"]}.items():
        # The same method may have been evaluated before, with fewer and with more tests; of equals the last is kept.
        rising = frames[name].sort_values("n", kind="stable", key=lambda tests: tests.fillna(0))
        frames[name] = rising.drop_duplicates(by, keep="last").sort_index(ignore_index=True)
    methods = {*frames["distances"]["method"], *frames["reaches"]["method"]}
    return Runs(
        **frames,
        settings={Path(run).name: settings for run, settings in table.settings.items()},
        conditions=frames["runs"]["condition"].unique().tolist(),
        methods=sorted(methods, key=lambda name: (name != "plain", natural_key(name))),
        thresholds={settings.get("probe.threshold", 0.8) for settings in table.settings.values()},
        common=common,
    )


def collect_rows(table: ResultTable, run: str) -> dict[str, Sequence[Row]]:
    """List a run's rows of every frame; an evaluation's reach replaces it where training did not probe it."""
    probes = [probe for probe in table.probes if probe["run"] == run]
    results = table.rows[(table.rows.run == run) & table.rows.measure.isin(["probe", "distance"])]
    # Later rows take the place of earlier ones, so that the order of writing counts, training's first.
    written = [(file.name != "probes.jsonl", file.stat().st_mtime_ns, file.name) for file in results.file]
    results = results.assign(written=written).sort_values("written", kind="stable")
    probe = probes[-1] if probes else {}
    # Evaluations of earlier checkpoints are excluded: the page shows the run at its end.
    tokens = probe.get("tokens") or results.tokens.max()
    last = results[results.tokens == tokens]
    reaches: list[Row] = []
    distances: list[Row] = []
    newest: dict[str, list[object]] = {}
    for result in last.itertuples():
        row = {**result.record, "method": (result.method or "rope+plain").removeprefix("rope+")}
        if result.metric.startswith("reach"):
            reaches.append({**row, "g_from_reach": result.g})
        elif result.metric == "accuracy":
            distances.append(row)
            newest[row["method"]] = identify_tests(row)
    reach = probe if "reach" in probe else next((row for row in reversed(reaches) if row["method"] == "plain"), {})
    settings = table.settings[run]
    about = {"seed": settings.get("run.seed"), "window": settings.get("data.window"), "tokens": tokens}
    counts = Path(run) / "counts.npz"
    return {
        "runs": [about | {key: reach.get(key) for key in REACH} | {key: probe.get(key) for key in LENGTH}],
        "losses": list_losses(Path(run), probes),
        "probes": probes,
        "reaches": reaches,
        # Of each method those whose tests are those of its last row.
        "distances": [row for row in distances if identify_tests(row) == newest[row["method"]]],
        "frequency": per_distance(SavedCounts.read(counts).profiles()) if counts.exists() else [],
        "contexts": list(list_contexts(probe)),
        "gains": [{**row, "gain": row["score"]} for row in probe.get("recall", [])],
    }


def identify_tests(row: Row) -> list[object]:
    return [row.get(name) for name in ("digits", "prompt_tokens", "haystack", "seed")]


def list_losses(run: Path, probes: Sequence[Row]) -> list[Row]:
    """List the training loss, a mean over each part of the run, and the held-out loss of every probe."""
    rows: list[Row] = []
    logged = pd.DataFrame([row for row in RunFolder(run).records("metrics.jsonl") if row.get("loss") is not None])
    if len(logged):
        # A run logs thousands of steps: means of 80 equal parts keep the page small.
        part = logged.index // math.ceil(len(logged) / 80)
        means = logged.groupby(part)[["consumed_tokens", "loss"]].mean()
        for number, tokens, loss in means.itertuples():
            rows.append({"kind": "training", "bin": number, "tokens": tokens, "loss": loss})
    for probe in probes:
        loss = {"tokens": probe["tokens"], "loss": probe.get("held_out_loss")}
        if loss["loss"] is not None:
            rows.append({"kind": "held out", "bin": len(rows), **loss})
    return rows


def fold_runs(rows: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """Fold the runs of a condition: `mean` of a value, `count`, limits `low`, `high`; of one run those of its row."""
    groups = rows.dropna(subset=[value]).groupby([*by], sort=False)
    lists = groups[value].agg(list).reset_index()
    # Limits of shares lie within 0 and 1.
    ends = SHARES if value == "score" else None
    means = [limits_over_seeds(values, ends) for values in lists[value]]
    folds = lists[[*by]].join(pd.DataFrame(means, columns=["mean", "low", "high"]))
    folds["count"] = lists[value].map(len).astype(int)
    for limit in {"low", "high"} & {*rows}:
        # One run has no limits over seeds; those of its own tests stand in for them.
        folds[limit] = folds[limit].where(folds["count"] > 1, groups[limit].first().reset_index()[limit].astype(float))
    return folds


def limits_over_seeds(values: Sequence[float], ends: tuple[float, float] | None = None) -> tuple[float, float, float]:
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
    for _, group in list_outcomes(rows, value).groupby([*by], sort=False):
        n = len(group)
        about = group[[*by, value, "outcome"]].assign(low=np.nan, high=np.nan, runs=1, of=n)
        # A mean that includes a bound would be no estimate of reach.
        if n > 1 and (group["outcome"] == RUN).all():
            mean, low, high = limits_over_seeds(group[value].tolist())
            about = about[:1].assign(**{value: mean}, low=np.maximum(low, 0), high=high, runs=n, outcome=MEAN)
        elif n == 1:
            for side, limit, end in zip(("low", "high"), LIMITS[value], ENDS[value], strict=True):
                about[side] = group[limit].astype(float).fillna(group[end].astype(float))
        points.append(about)
    empty = pd.DataFrame(columns=[*by, value, "low", "high", "runs", "of", "outcome"])
    return pd.concat(points, ignore_index=True) if points else empty
