"""What a report shows of its runs, as data frames made of the table of their results.

A condition is a set of n runs that differ in nothing but seeds (lab/analysis/conditions.py); one run alone has its own
name.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from eval.engine.text import natural_key
from lab.analysis.conditions import label_conditions
from lab.analysis.run import Run, tabulate_probes
from lab.analysis.table import check_runs, read_result_table
from lab.core.chart_style import CENSORED, RUN
from lab.counts.saved import per_distance
from lab.results.statistics import mean_with_limits

PROFILE = ["profile", "distance", "per distance"]
TESTS = ("digits", "prompt_tokens", "haystack", "seed")  # of one sample
FEWEST_SEEDS = 3  # that have limits: those of two fill a figure


class Runs(NamedTuple):
    """The frames, which have the columns condition and run, and what all figures share.

    `probes` are those of training as lab.frame has them, `runs` the last one of each run. `losses` are of training, a
    mean over each eightieth, and on held-out text at every probe. `results` are rows of the table of results. `reaches`
    and `distances` are those under each position method at the last probe, as `contexts` and `gains` are. `frequency`
    has f(i), and g(d) where it was counted, by bins of distances.

    `conditions` are in the order of their settings, as the runs are, `methods` plain first, then by name and
    parameters. `thresholds` are those of all probes.
    """

    runs: pd.DataFrame
    losses: pd.DataFrame
    probes: pd.DataFrame
    results: pd.DataFrame
    reaches: pd.DataFrame
    distances: pd.DataFrame
    frequency: pd.DataFrame
    contexts: pd.DataFrame
    gains: pd.DataFrame
    conditions: list[str]
    methods: list[str]
    thresholds: set[float]


def read_runs(places: Sequence[Path]) -> Runs:
    """Read run folders, rejecting what is none, has the name of another, or is broken."""
    check_runs(places)
    table = read_result_table(places)
    # Runs of a condition follow one another, with the numbers in the names of conditions rising.
    order = sorted(table.conditions, key=lambda run: natural_key(table.conditions[run].name))
    named = label_conditions(table.conditions)
    labels = {Path(run).name: named[run] for run in order}

    def collect(read: Callable[[Run], pd.DataFrame]) -> pd.DataFrame:
        """Join the tables of all runs."""
        parts = [read(Run(Path(run))).assign(run=Path(run).name) for run in order]
        return label(pd.concat(parts, ignore_index=True))

    def label(frame: pd.DataFrame) -> pd.DataFrame:
        frame.insert(0, "condition", frame["run"].map(labels))
        return frame.sort_values("run", key=lambda runs: runs.map([*labels].index), kind="stable", ignore_index=True)

    results = table.rows[table.rows.measure.isin(["probe", "distance"])].drop(columns="condition")
    results["run"] = [Path(run).name for run in results.run]
    results["method"] = results.method.fillna("rope+plain").str.removeprefix("rope+")
    # Later rows take the place of earlier ones, so that the order of writing counts, training's first.
    results["written"] = [(x.name != "probes.jsonl", x.stat().st_mtime_ns, x.name) for x in results.file]
    results = results.sort_values("written", kind="stable")
    results["probe"] = results.groupby("run").tokens.rank("dense") - 1
    methods = sorted({*results.method}, key=lambda name: (name != "plain", natural_key(name)))
    last = select_last(results, "tokens")
    # Of each method and metric the tests of its last row, and of those of one distance the most, or the last.
    tests = pd.Series([str([row.get(name) for name in TESTS]) for row in last.record], last.index, dtype=object)
    last = last[tests == tests.groupby([last.run, last.method, last.metric]).transform("last")]
    last = last.sort_values("n", kind="stable", na_position="first")
    last = last.drop_duplicates(["run", "method", "metric", "distance"], keep="last").sort_index()
    last = label(last.sort_values("method", key=lambda names: names.map(methods.index), kind="stable"))
    probes = label(tabulate_probes(table.settings))
    gains = select_last(collect(Run.recall))
    gains["middle"] = gains.groupby("distance").middle.transform("mean")  # of the bins of all seeds
    held_out = probes.rename(columns={"probe": "bin", "held_out_loss": "loss"}).dropna(subset="loss")
    return Runs(
        runs=label(tabulate_probes(table.settings, last=True)),
        losses=pd.concat([collect(average_losses), held_out.assign(kind="held out")], ignore_index=True),
        probes=probes,
        results=label(results[[file.name == "probes.jsonl" for file in results.file]]),
        reaches=last[last.metric.str.startswith("reach")].rename(columns={"score": "reach"}),
        distances=last[last.metric == "accuracy"],
        frequency=collect(read_frequency),
        contexts=select_last(collect(Run.contexts)),
        gains=gains,
        conditions=[*dict.fromkeys(labels.values())],
        methods=methods,
        thresholds={settings.get("probe.threshold", 0.8) for settings in table.settings.values()},
    )


def select_last(rows: pd.DataFrame, tokens: str = "consumed_tokens") -> pd.DataFrame:
    """Select the rows at the end of each run: the page shows no earlier checkpoints."""
    return rows[rows[tokens] == rows.groupby("run")[tokens].transform("max")]


def average_losses(run: Run) -> pd.DataFrame:
    """Average the training loss over 80 parts of a run: of the thousands of steps that it logs the page keeps few."""
    logged = run.metrics().reindex(columns=["consumed_tokens", "loss"]).dropna().reset_index()
    means = logged.groupby(logged.index // math.ceil(len(logged) / 80 or 1)).mean()
    return means.rename_axis("bin").reset_index().assign(kind="training")


def read_frequency(run: Run) -> pd.DataFrame:
    """Read f(i) and g(d) of a run, in bins; it has none before it has saved a checkpoint."""
    is_counted = (run.path / "counts.npz").exists()
    return pd.DataFrame(per_distance(run.counts().profiles()) if is_counted else [], columns=PROFILE)


def fold_runs(
    rows: pd.DataFrame, by: Sequence[str], value: str = "score", ends: tuple[float, float] | None = None
) -> pd.DataFrame:
    """Fold the runs of a condition: `mean` of a value, `count`, limits `low`, `high`; of one run those of its row."""
    groups = rows.dropna(subset=[value]).groupby([*by], sort=False)
    folds = groups.agg(mean=(value, "mean"), count=(value, "size")).reset_index()
    limits = [mean_with_limits(values.tolist(), ends=ends)[1:] for _, values in groups[value]]
    folds[["low", "high"]] = np.array(limits).reshape(-1, 2)
    folds.loc[folds["count"] < FEWEST_SEEDS, ["low", "high"]] = math.nan
    for limit in {"low", "high"} & {*rows}:
        # One run has no limits over seeds; those of its own tests stand in for them.
        own = groups[limit].first().reset_index()[limit].astype(float)
        folds[limit] = folds[limit].where(folds["count"] > 1, own)
    return folds


def list_outcomes(rows: pd.DataFrame, value: str = "reach") -> pd.DataFrame:
    """Keep the tested runs: the outcome of each (lab.core.chart_style), and the value, a censored one at its bound."""
    filled = rows[value].astype(float).fillna(rows["first"].astype(float))
    return rows.assign(**{value: filled}, outcome=rows["censored"].map(CENSORED).fillna(RUN))[filled.notna()]
