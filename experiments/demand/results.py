"""The results of docs/demand.md from its records: conditions, tests of the predictions, and a picture.

A run is one observation. Branches of a base model are compared by the differences of pairs, with limits of the t
distribution over seeds. If some run of two conditions has not acquired retrieval, limits get two seeds more, at -1 and
1 (lab/runs/arms.py). p is that of the paired t test, adjusted by Holm over the predictions of an experiment; the exact
p is that of all flips of signs. Verdicts are those of docs/findings.md.

A run has acquired retrieval if it finds half of the numbers at some distance.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from eval.engine.reach_points import ACQUIRED
from eval.engine.rows import to_text
from eval.engine.seeds import paired_t
from experiments.demand.plans import CONDITIONS, PLANS, PREDICTIONS, Prediction
from experiments.runs import BRANCH_SEED
from experiments.tables import find_tables, read_tests, write_reach, write_tables
from experiments.window.verdicts import add_verdicts, compare_seeds
from lab.core.chart import Rule, hconcat, plot_rows, save
from lab.core.types import Row
from lab.core.yaml import read_yaml
from lab.counts import SavedCounts
from lab.probe.reach import ONE, recompute_reach
from lab.runs.arms import mean_with_limits
from lab.runs.tables import unpacked

DIFFERENCES = (-1.0, 1.0)  # of two accuracies
MIDDLE = 120  # tokens, at which the tables show f
BAND = (72, 179)  # tokens, of accuracy
NEAREST = 48  # tokens, a quarter of the window; nearer tests count for reach alone
THRESHOLD = 0.8
HEADING = "## Retrieval demand at equal position frequency"  # of the page
PLOT_ACCURACY = partial(plot_rows, x_title="distance (tokens)", y_title="accuracy", y_limits=(0, 1), percent=True)
FORMS = dict.fromkeys(("difference", "low", "high", "low 90", "high 90"), ".3f")
FORMS |= dict.fromkeys(("p", "p, Holm", "exact p"), ".2g")


def describe(records: Path, out: Path | None = None) -> None:
    """Print the conditions and the tests; into a folder, plot them and write them into its demand.md."""
    tests, runs = read(find_tables(records, PLANS))
    parts = []
    for name, mine in runs.groupby("table", sort=False):
        parts.append(to_text(list(condition_rows(name, mine))))
    if verdicts := list(verdict_rows(runs)):
        parts.append(to_text(verdicts, FORMS))
    write_tables("\n\n".join(parts), out and out / "demand.md", HEADING)
    if out is not None:
        plot(tests, out / "demand.png")


def read(tables: Sequence[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the accuracy of each run at each distance, and a row for each run: accuracy, reach, f and demand."""
    tests: list[Row] = []
    runs: list[Row] = []
    with unpacked(tables) as places:
        for place in places:
            read_run(place, tests, runs)
    return pd.DataFrame(tests), pd.DataFrame(runs)


def read_run(place: Path, tests: list[Row], runs: list[Row]) -> None:
    """Add the accuracies of a run and its own row."""
    table, _, name = place.name.split("-", 2)
    beyond = PLANS[table].beyond
    arm = name.replace("_", " ")
    # Branches add BRANCH_SEED to the seed of their base model.
    seed = read_yaml(place / "config.yaml")["run"]["seed"] % BRANCH_SEED
    about: Row = {"table": table, "arm": arm, "condition": CONDITIONS[arm.removesuffix(f" {beyond}")], "seed": seed}
    by_distance = {row["distance"]: row for row in read_tests(place) if row["metric"] == ONE}
    about["acquired"] = any(row["score"] >= ACQUIRED for row in by_distance.values())
    in_band = []
    for distance, row in by_distance.items():
        if distance >= NEAREST:
            tests.append({**about, "method": row["method"], "distance": distance, "score": row["score"]})
        if BAND[0] <= distance <= BAND[1]:
            in_band.append(row["score"])
    counts = SavedCounts.read(place / "counts.npz")
    about |= {"accuracy": np.mean(in_band), "f": counts.f[MIDDLE], "g": counts.g_from(beyond + 1)}
    runs.append(about | recompute_reach(by_distance, THRESHOLD))


def condition_rows(table: str, runs: pd.DataFrame) -> Iterator[Row]:
    """Describe each condition of a table: seeds, accuracy, the reach of each seed and its mean, f and demand."""
    for condition in CONDITIONS.values():
        mine = runs[runs["condition"] == condition].sort_values("seed")
        if mine.empty:
            continue
        reaches = [write_reach(*pair) for pair in zip(mine["reach"], mine["last_distance"], strict=True)]
        row: Row = {table: condition, "n": len(mine), "acquired": mine["acquired"].sum()}
        row |= {"accuracy": f"{mine['accuracy'].mean():.2f}", "reach of each seed": " ".join(reaches), "mean": "-"}
        # A reach that is only bounded has no mean.
        if all(each.isdigit() for each in reaches):
            mean, low, high = np.exp(mean_with_limits(np.log(mine["reach"]).tolist()))
            row["mean"] = f"{mean:.0f}" if math.isnan(low) else f"{mean:.0f} ({low:.0f} to {high:.0f})"
        yield row | {f"f at {MIDDLE}": round(mine["f"].mean()), "g beyond D": round(mine["g"].mean())}


def verdict_rows(runs: pd.DataFrame) -> Iterator[Row]:
    """Test each prediction of which there are runs, with p adjusted within its experiment."""
    # Holm's correction covers the predictions of one experiment, as they were registered.
    for experiment in ("S1", "S3"):
        rows = []
        for prediction in PREDICTIONS:
            is_compared = runs["condition"].isin([prediction.one, prediction.other])
            mine = runs[(runs["table"] == prediction.table) & is_compared]
            if prediction.table.startswith(experiment) and mine["condition"].nunique() == 2:
                rows.append((prediction, compare(prediction, mine)))
        yield from add_verdicts(rows)


def compare(prediction: Prediction, runs: pd.DataFrame) -> Row:
    """Compute the mean difference of seeds, its limits and p."""
    by_seed = runs.pivot(index="seed", columns="condition", values="accuracy")
    differences = (by_seed[prediction.one] - by_seed[prediction.other]).dropna().tolist()
    # A run without retrieval has an accuracy of about 0 whatever its condition, which t limits do not allow for.
    ends = None if runs["acquired"].all() else DIFFERENCES
    name = f"{prediction.name}: {prediction.one} less {prediction.other}"
    row: Row = {"prediction": name, "D": PLANS[prediction.table].beyond, "n": len(differences)}
    row["acquired"] = f"{runs['acquired'].sum()} of {len(runs)}"
    return row | compare_seeds(name, differences, ends) | {"exact p": paired_t(differences, name).p_exact}


def plot(tests: pd.DataFrame, path: Path) -> None:
    """Plot the mean accuracy by distance of the conditions of S1 and S3."""
    panels = []
    names = [*CONDITIONS.values()][:5]
    plot_accuracy = partial(PLOT_ACCURACY, names=names, rules=[Rule("y", THRESHOLD)], width=360)
    for table, mine in tests[tests["table"] != "layers"].groupby("table"):
        means = mine.groupby(["condition", "distance"])["score"].mean().reset_index()
        gaps = "ids with gaps" if table == "S1" else "ids without gaps"
        title = f"{table[:2]}: masked beyond {PLANS[table].beyond}, {gaps}, n = {mine['seed'].nunique()}"
        shown = [name for name in names if name in set(means["condition"])]
        panels.append(plot_accuracy(means, "distance", "score", "condition", title=title, legend=shown))
    save(hconcat(*panels), path)
