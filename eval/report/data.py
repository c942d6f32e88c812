"""What a report shows of its runs, as data frames.

An arm is a set of n runs that differ in nothing but seed and name (lab/runs/arms.py). Its name leaves out the settings
that most arms have, which `common` lists.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from eval.engine.records import ENDS, SUMMARY, ProbedRun, list_results
from eval.engine.records import read_runs as read_probed
from eval.engine.rows import natural_key
from lab.core.chart_style import CENSORED, MEAN, RUN
from lab.core.types import Row
from lab.counts import SavedCounts
from lab.counts.saved import per_distance
from lab.probe.reach import ONE, with_reach
from lab.runs.arms import SHARES, classify_reach, mean_with_limits, name_arms, without_common
from lab.runs.folder import RunFolder
from lab.runs.probe_records import list_contexts

TRAINED, HELD_OUT = "training", "held out"
TESTS = ["digits", "prompt_tokens", "haystack", "seed"]  # what one-number tests are in addition to their distance
REACH = ["reach", "reach_low", "reach_high", "first_distance", "last_distance", "f_at_reach", "g_from_reach"]
LENGTH = ["effective_length", "low", "high", *ENDS["effective_length"], "f_at_effective_length", "held_out_loss"]
BINS = 80  # of consumed tokens, in a curve of the training loss
FEWEST_SEEDS = 3  # that have limits: those of two fill a figure

FRAMES = {  # columns of the frames, in addition to arm and run
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

    `arms` are in the order of their settings, as the runs are, `methods` plain first, then by name and parameters.
    `thresholds` are those of all probes.
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
    arms: list[str]
    methods: list[str]
    thresholds: set[float]
    common: str


def read_runs(places: Sequence[Path]) -> Runs:
    """Read run folders, rejecting what is none, has the name of another, or is broken."""
    probed = read_probed(places)
    settings = {name: run.settings for name, run in probed.items()}
    arms, common = without_common(name_arms(settings))
    sizes = Counter(arms.values())
    for name, arm in arms.items():
        arms[name] = f"{arm}, n = {sizes[arm]}"
    # Runs of an arm follow one another, with the numbers in the names of arms rising.
    order = sorted(probed, key=lambda name: natural_key(arms[name]))
    rows: dict[str, list[Row]] = defaultdict(list)
    for name in order:
        for kind, of_run in collect_rows(probed[name]).items():
            for row in of_run:
                rows[kind].append({"arm": arms[name], "run": name, **row})
    frames = {}
    for kind, columns in FRAMES.items():
        frames[kind] = pd.DataFrame(rows[kind]).reindex(columns=["arm", "run", *columns])
    # The same method may have been evaluated before, with fewer and with more tests.
    frames["reaches"] = select_most_tested(frames["reaches"], ["run", "method"])
    frames["distances"] = select_most_tested(frames["distances"], ["run", "method", "distance"])
    methods = {*frames["distances"]["method"], *frames["reaches"]["method"]}
    return Runs(
        **frames,
        settings=settings,
        arms=frames["runs"]["arm"].unique().tolist(),
        methods=sorted(methods, key=lambda name: (name != "plain", natural_key(name))),
        thresholds={config.get("probe.threshold", 0.8) for config in settings.values()},
        common=common,
    )


def collect_rows(run: ProbedRun) -> dict[str, Sequence[Row]]:
    """List a run's rows of every frame; an evaluation's reach replaces it where training did not probe it."""
    last = last_rows(run)
    counts = run.path / "counts.npz"
    probe = run.probes[-1] if run.probes else {}
    reaches = []
    reach: Row = {}
    for row in last:
        if "reach" in row:
            reaches.append(row)
            if row["method"] == "plain":
                reach = row
    if "reach" in probe:
        reach = probe
    about = {"seed": run.settings.get("run.seed"), "window": run.settings.get("data.window")}
    about["tokens"] = last[0]["consumed_tokens"] if last else None
    about |= {key: reach.get(key) for key in REACH}
    about |= {key: probe.get(key) for key in LENGTH}
    probes = []
    for number, row in enumerate(run.probes):
        probes.append({**row, "tokens": row["consumed_tokens"], "probe": number})
    return {
        "runs": [about],
        "losses": list_losses(run),
        "probes": probes,
        "reaches": reaches,
        "distances": list_distances(last),
        "frequency": per_distance(SavedCounts.read(counts).profiles()) if counts.exists() else [],
        "contexts": list(list_contexts(probe)),
        "gains": [{**row, "gain": row["score"]} for row in probe.get("recall", [])],
    }


def list_losses(run: ProbedRun) -> list[Row]:
    """List the training loss, a mean over each part of the run, and the held-out loss of every probe."""
    logged = [row for row in RunFolder(run.path).records("metrics.jsonl") if row.get("loss") is not None]
    # A run logs thousands of steps: means of equal parts keep the page small.
    size = math.ceil(len(logged) / BINS) or 1
    rows: list[Row] = []
    for start in range(0, len(logged), size):
        part = pd.DataFrame(logged[start : start + size])
        tokens, loss = float(part["consumed_tokens"].mean()), float(part["loss"].mean())
        rows.append({"kind": TRAINED, "bin": len(rows), "tokens": tokens, "loss": loss})
    for probe in run.probes:
        if probe.get("held_out_loss") is not None:
            tokens, loss = float(probe["consumed_tokens"]), float(probe["held_out_loss"])
            rows.append({"kind": HELD_OUT, "bin": len(rows), "tokens": tokens, "loss": loss})
    return rows


def last_rows(run: ProbedRun) -> list[Row]:
    """Read the rows at the last probe, of training and of evaluations oldest first, without single tests."""
    # Later rows take the place of earlier ones, so that the order of writing counts.
    files = sorted(list_results(run.path / "eval"), key=lambda file: (file.stat().st_mtime, file.name))
    evaluated: list[Row] = []
    for file in files:
        evaluated += with_reach(RunFolder(file.parent).read(file.name))
    # Evaluations of earlier checkpoints are excluded: the page shows the run at its end.
    tokens = max((row.get("consumed_tokens") or 0 for row in run.probes or evaluated), default=0)
    last = []
    for row in (*with_reach(RunFolder(run.path).records("probes.jsonl")), *evaluated):
        if row.get("consumed_tokens") == tokens:
            method = str(row.get("method", "rope+plain")).removeprefix("rope+")
            last.append({**row, "method": method})
    return last


def list_distances(last: list[Row]) -> list[Row]:
    """List shares by distance, of each method those whose tests are those of its last row."""
    rows = []
    newest = {}
    for row in last:
        if {"distance", "score"} <= row.keys() and row.get("metric", ONE) == ONE:
            tests = [row.get(name) for name in TESTS]
            rows.append((row, tests))
            newest[row["method"]] = tests
    return [row for row, tests in rows if tests == newest[row["method"]]]


def select_most_tested(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Keep of rows about the same thing the one with most tests, of equals the last."""
    rising = rows.sort_values("n", kind="stable", key=lambda tests: tests.fillna(0))
    return rising.drop_duplicates(by, keep="last").sort_index(ignore_index=True)


def fold_runs(rows: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """Fold the runs of an arm: `mean` of a value, `count`, limits `low` and `high`, those of its row for one run."""
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
    """Return the mean over seeds, with limits where there are enough of them."""
    mean, low, high = mean_with_limits(values, ends=ends)
    if len(values) < FEWEST_SEEDS:
        low = high = math.nan
    return mean, low, high


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Fold seeds: the mean share with limits over seeds; of one run, the limits of its tests."""
    by = ["arm", "method", "distance"]
    mean = fold_runs(rows, by, "score").rename(columns={"mean": "share", "count": "runs"})
    one = rows.dropna(subset=["score"]).groupby(by, sort=False).agg({"f": "mean", "n": "sum"}).reset_index()
    f = one["f"].astype(float).round()  # of rows without any it is a column of objects, which no page can hold
    return mean.assign(f=f, tests=one["n"])


def outcomes(rows: pd.DataFrame, value: str = "reach") -> pd.DataFrame:
    """Keep the tested runs: the outcome of each (lab.core.chart_style), and the value, a censored one at its bound."""
    ends = [classify_reach(*row) for row in rows[[value, *ENDS[value]]].itertuples(index=False)]
    names = [CENSORED.get(str(end), RUN) for end in ends]
    filled = rows[value].astype(float).fillna(rows[ENDS[value][0]].astype(float))
    return rows.assign(**{value: filled}, outcome=names)[filled.notna()]


def reach_points(rows: pd.DataFrame, by: Sequence[str], value: str = "reach") -> pd.DataFrame:
    """Fold the runs of each group into a point: their mean with limits; where a run is censored, a point for each run.

    The limits of a group of one run are those of its tests, which end at the first and last distance. `runs` is how
    many runs a point represents, `of` those of its group.
    """
    points = []
    limits = next((low, high) for name, low, high, *_ in SUMMARY if name == value)
    for key, group in outcomes(rows, value).groupby([*by], sort=False):
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
                for side, limit, end in zip(("low", "high"), limits, ENDS[value], strict=True):
                    point[side] = row[end] if pd.isna(row.get(limit)) else row[limit]
            points.append({**about, **point})
    table = pd.DataFrame(points, columns=[*by, value, "low", "high", "runs", "of", "outcome"])
    return table.astype({"low": float, "high": float})
