"""The results of docs/findings.md from the records: conditions, verdicts on the predictions, and a picture.

A run is one observation. Branches of a base model are compared by the differences of pairs, with limits of the t
distribution over seeds. Verdicts are those of the predictions: *equal* if the 90% limits lie within the margin, *shown*
if the 95% limits lie on the predicted side of 0 and p, adjusted by Holm over an experiment, is below .05. Fewer than
FEWEST seeds are described and get no verdict.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from eval.engine.rows import to_text
from eval.engine.seeds import paired_t
from eval.engine.statistics import holm
from experiments.demand.plans import PLANS
from experiments.demand.results import read
from experiments.window.plans import DISTANCES, STAGES, methods_at
from lab import looks
from lab.counts import SavedCounts
from lab.draw import GREY, beside, draw, layer, save
from lab.errors import ConfigError
from lab.looks import BEYOND
from lab.probe.reach import reach_of
from lab.runs.arms import FEWEST, mean_with_limits
from lab.runs.tables import unpacked
from lab.yaml import read_yaml

MARGIN = 0.1  # in accuracy, within which a difference counts as none
THRESHOLD = 0.8
ACQUIRED = 0.5  # accuracy of a run that has acquired retrieval, in the mean over the distances tested
PLAIN, THIRD, HALF, DCA, DCA_QUARTER = METHODS = ("plain", "STRING 1/3", "STRING 1/2", "DCA 1/2", "DCA 1/4")
NEAR, BAND = (72, 120), (72, 179)  # of S2
GAPS = Path("experiments/demand/records/S1.jsonl.xz")
GAP_NAMES = {  # of the conditions of S1
    "base": "base model",
    "far off": "far-masked",
    "all": "unmasked",
    "near off": "near-masked",
    "kind off": "matched control",
}
WIDTH, LIMITS = 380, (90, 800)  # of a panel, and of the axis of reach
Row = dict[str, Any]


class Records(NamedTuple):
    """Accuracy by method, prompt length and distance, and a row for each run: its reach by method, f and demand."""

    cells: pd.DataFrame
    runs: pd.DataFrame


class Prediction(NamedTuple):
    """A prediction about the differences of seeds: that they are equal, or `least` or more."""

    name: str
    experiment: str
    differences: Callable[[Records], "pd.Series[float]"]
    least: float | None = None
    is_one_sided: bool = False  # an equality that only a difference in favour of the first refutes


def read_records(folder: Path) -> Records:
    """Read the tables of a folder.

    Raises: ConfigError if there are none.
    """
    tables = [table for name in STAGES if (table := folder / f"{name}.jsonl.xz").exists()]
    if not tables:
        raise ConfigError(f"--results: {folder} has no records; train the runs first, without --results")
    with unpacked(tables) as places:
        return collect(places)


def collect(places: Iterable[Path]) -> Records:
    """Read run folders."""
    cells: list[Row] = []
    runs: list[Row] = []
    for place in places:
        read_run(place, cells, runs)
    return Records(pd.DataFrame(cells), pd.DataFrame(runs))


def read_run(place: Path, cells: list[Row], runs: list[Row]) -> None:
    """Add the accuracies of a run and its own row."""
    stage, seed, branch = place.name.split("-", 2)
    config = read_yaml(place / "config.yaml")
    window = int(config["data"]["window"])
    about = {"stage": stage, "seed": int(seed), "branch": branch.replace("_", " "), "window": window}
    rows = [json.loads(line) for path in place.glob("eval/*.jsonl") for line in path.read_text("utf-8").splitlines()]
    names = list(dict.fromkeys(row["method"] for row in rows))  # in the order of methods_at
    assert len(names) in (1, len(methods_at(window))), "a run was tested under all methods, or plain only"
    reaches = {}
    acquired = False
    for label, name in zip(METHODS, names, strict=False):
        mine = [row for row in rows if row["method"] == name and row["metric"] != "reach"]
        for row in mine:
            values = {key: row[key] for key in ("distance", "n", "found", "score")}
            cells.append({"run": place.name, **about, "method": label, "prompt": row.get("prompt", window), **values})
        filled = {row["distance"]: row for row in mine if "prompt" not in row}
        if label == PLAIN:
            acquired = float(np.mean([row["score"] for row in filled.values()])) >= ACQUIRED
        reach = reach_of(filled, THRESHOLD)
        reaches |= {
            label: math.nan if reach["reach"] is None else reach["reach"],
            f"{label} last": reach["last_distance"],
        }
    counts = SavedCounts.read(place / "counts.npz")
    provenance = json.loads((place / "provenance.json").read_text("utf-8"))
    middle = window // 2 if stage.startswith("W") else 120
    demand = {"f": int(counts.f[middle]), "g": counts.g_from(middle if stage.startswith("W") else 65)}
    runs.append({**about, "acquired": acquired, "tokens": config["train"]["tokens"], **reaches, **demand, **provenance})


def has_acquired(place: Path) -> bool:
    """Return whether a run has acquired retrieval."""
    runs: list[Row] = []
    read_run(place, [], runs)
    return bool(runs[0]["acquired"])


def accuracy(
    records: Records, stage: str, branch: str, low: int, high: int, method: str = PLAIN, prompt: int | None = None
) -> "pd.Series[float]":
    """Average the accuracy of each seed over the distances of a band, in prompts of the window or shorter."""
    cells = records.cells
    length = cells["window"] if prompt is None else prompt
    chosen = (cells["stage"] == stage) & (cells["branch"] == branch) & (cells["method"] == method)
    chosen &= (cells["prompt"] == length) & (cells["distance"] >= low) & (cells["distance"] <= high)
    return cells[chosen].groupby("seed")["score"].mean()


def far_accuracy(records: Records, window: int, method: str = PLAIN, stage: str = "W_1M") -> "pd.Series[float]":
    """Average the accuracy of each seed over the distances of at least half of the window."""
    return accuracy(records, stage, str(window), window // 2, window, method)


def ln_growth(records: Records) -> "pd.Series[float]":
    """Compute the least difference of ln reach of each seed, window 384 less 192, that its tests allow.

    A reach of 192 that is the end of the test lies below 192, one of 384 is at least the end; none is the least
    distance tested.
    """
    runs = records.runs[records.runs["stage"] == "W_1M"]
    shorter = runs[runs["branch"] == "192"].set_index("seed")
    longer = runs[runs["branch"] == "384"].set_index("seed")
    is_end = shorter[PLAIN] >= shorter[f"{PLAIN} last"]
    most = shorter[PLAIN].mask(is_end, 192)  # without a reach there is no difference
    return np.log(longer[PLAIN].fillna(DISTANCES[0])) - np.log(most)


def of_s2(first: str, second: str, band: tuple[int, int], stage: str = "S2_crossed") -> Callable[[Records], Any]:
    """Compare two conditions of S2 over a band."""

    def differences(records: Records) -> "pd.Series[float]":
        return accuracy(records, stage, first, *band) - accuracy(records, stage, second, *band)

    return differences


def of_windows(first: int, second: int) -> Callable[[Records], Any]:
    """Compare far accuracy at two windows."""
    return lambda records: far_accuracy(records, first) - far_accuracy(records, second)


def of_method(window: int, method: str) -> Callable[[Records], Any]:
    """Compare far accuracy under a method and without it."""
    return lambda records: far_accuracy(records, window, method) - far_accuracy(records, window)


def of_prompts(first: int, second: int, band: tuple[int, int]) -> Callable[[Records], Any]:
    """Compare prompts of two lengths at a window of 768."""

    def differences(records: Records) -> "pd.Series[float]":
        one, other = (accuracy(records, "W_1M", "768", *band, prompt=prompt) for prompt in (first, second))
        return one - other

    return differences


PREDICTIONS = (
    Prediction("S2a: A less B at 72 to 120", "S2", of_s2("A", "B", NEAR, "S2"), is_one_sided=True),
    Prediction("S2b: A less B at 72 to 179", "S2", of_s2("A", "B", BAND, "S2"), is_one_sided=True),
    Prediction("S2c: A unmasked less none beyond 64", "S2", of_s2("A unmasked", "A none beyond 64", BAND), 0.2),
    Prediction(
        "S2d: none beyond 64, A less B", "S2", of_s2("A none beyond 64", "B none beyond 64", BAND), is_one_sided=True
    ),
    Prediction("W1: far accuracy, 192 less 384", "W", of_windows(192, 384), 0.1),
    Prediction("W1: far accuracy, 384 less 768", "W", of_windows(384, 768), 0.1),
    Prediction("W2: ln reach, 384 less 192, at least", "W", ln_growth, 0.0),
    *(
        Prediction(f"W3: far accuracy at {window}, {method} less plain", "W", of_method(window, method), 0.2)
        for window in (384, 768)
        for method in (HALF, DCA)
    ),
    Prediction("W4: at 768, 24 to 112, prompts of 256 less 768", "W", of_prompts(256, 768, (24, 112)), 0.1),
    Prediction("W5: at 768, 224 to 496, prompts of 512 less 768", "W", of_prompts(512, 768, (224, 496))),
)


def verdict_rows(records: Records) -> Iterator[Row]:
    """Test each prediction of which there are runs, with p adjusted within its experiment."""
    for experiment in ("S2", "W"):
        rows = []
        for prediction in (each for each in PREDICTIONS if each.experiment == experiment):
            differences = prediction.differences(records).dropna()
            if len(differences):
                rows.append((prediction, compare_seeds(prediction, differences.tolist())))
        adjusted = holm(pd.Series([row["p"] for prediction, row in rows if prediction.least is not None], dtype=float))
        left = iter(adjusted)
        for prediction, row in rows:
            row["p, Holm"] = math.nan if prediction.least is None else next(left)
            yield row | {"verdict": judge_prediction(prediction, row)}


def compare_seeds(prediction: Prediction, differences: Sequence[float]) -> Row:
    """Compute the mean difference, its limits and p."""
    mean, low, high = mean_with_limits(differences)
    _, low_90, high_90 = mean_with_limits(differences, 0.90)
    p = paired_t(differences, prediction.name).p if len(differences) >= FEWEST else math.nan
    row = {"prediction": prediction.name, "n": len(differences), "difference": mean, "low": low, "high": high}
    return row | {"low 90": low_90, "high 90": high_90, "p": p}


def judge_prediction(prediction: Prediction, row: Mapping[str, Any]) -> str:
    """Return the verdict on a prediction by its limits."""
    if row["n"] < FEWEST or math.isnan(row["low"]):
        return "described"
    if prediction.least is None:
        if row["low 90"] > -MARGIN and row["high 90"] < MARGIN:
            return "equal"
        if prediction.is_one_sided:
            is_refuted = row["low"] > 0 and row["difference"] >= MARGIN
        else:
            is_refuted = row["low"] > MARGIN or row["high"] < -MARGIN
        return "refuted" if is_refuted else "open"
    if row["high"] < prediction.least:
        return "refuted"
    if row["low"] > 0 and row["p, Holm"] < 0.05:
        return "shown" if row["difference"] >= prediction.least else "shown, but less than predicted"
    return "open"


def condition_rows(records: Records) -> Iterator[Row]:
    """Describe each condition: seeds, far or band accuracy, the reach of each seed by method, f and demand."""
    for (stage, branch), mine in records.runs.groupby(["stage", "branch"], sort=False):
        window = int(mine["window"].iloc[0])
        is_s2 = stage.startswith("S2")
        low, high = BAND if is_s2 else (window // 2, window)
        row = {
            "stage": stage,
            "branch": branch,
            "n": len(mine),
            "acquired": int(mine["acquired"].sum()),
            "accuracy": f"{low} to {high}",
        }
        for method in METHODS[: 1 if is_s2 else None]:
            values = accuracy(records, stage, branch, low, high, method)
            reaches = [write_reach(*pair) for pair in zip(mine[method], mine[f"{method} last"], strict=True)]
            row |= {method: f"{values.mean():.2f}", f"reach, {method}": " ".join(reaches)}
        yield row | {"f": round(mine["f"].mean()), "g": round(mine["g"].mean())}


def write_reach(reach: float, last: float) -> str:
    """Write a reach, with + at the last distance tested and - if none is shown."""
    if math.isnan(reach):
        return "-"
    return f"{reach:.0f}+" if reach >= last else f"{reach:.0f}"


def describe(records: Records, out: Path | None = None) -> None:
    """Print the conditions and the verdicts; into a folder, plot them and write them into its findings.md."""
    parts = []
    for stage, rows in pd.DataFrame(condition_rows(records)).groupby("stage", sort=False):
        table = rows.drop(columns="stage").dropna(axis=1, how="all").set_index("branch").T
        parts.append(f"{stage}\n{to_text(table)}")
    verdicts = pd.DataFrame(verdict_rows(records))
    if len(verdicts):
        forms = {name: ".3f" for name in verdicts.columns if name not in ("prediction", "n", "verdict")}
        parts.append(to_text(verdicts.set_index("prediction"), forms))
    machines = records.runs["processor"].map(lambda each: ", ".join(f"{k} {v}" for k, v in each.items()))
    parts.append(f"processors: {'; '.join(sorted(machines.unique()))}")
    parts.append(f"SHA-256 of the predictions: {'; '.join(sorted(records.runs['sha256'].unique()))}")
    text = "\n\n".join(parts)
    print(text)
    if out is not None:
        plot_findings(records, out / "findings.png")
        if (records.runs["stage"] == "W_1M").any():
            plot_grid(records, out / "prompts.png")
        page = out / "findings.md"
        if page.exists():
            before, _, after = page.read_text("utf-8").split("```", 2)
            page.write_text(f"{before}```\n{text}\n```{after}", "utf-8")


def plot_grid(records: Records, path: Path) -> None:
    """Plot the mean accuracy at a window of 768 by prompt length and distance, plain, under STRING and under DCA."""
    cells = records.cells[(records.cells["stage"] == "W_1M") & (records.cells["branch"] == "768")]
    means = cells.groupby(["method", "prompt", "distance"])["score"].mean().rename("accuracy").reset_index()
    means = means[means["method"].isin([PLAIN, HALF, DCA])].sort_values(["prompt", "distance"], ascending=[False, True])
    rows = pd.concat([means[means["method"] == method] for method in (PLAIN, HALF, DCA)])
    style: dict[str, Any] = {"kind": "heat", "percent": True, "height": 120, "width": 2 * WIDTH, "columns": 1}
    style |= {"x_title": "distance (tokens)", "y_title": "prompt (tokens)"}
    save(draw(rows, "distance", "prompt", "accuracy", "method", **style), path)


def plot_findings(records: Records, path: Path) -> None:
    """Plot reach against window, accuracy against position frequency (S2), and accuracy by distance (S1)."""
    panels = [window_panel(records), frequency_panel(records), gap_panel()]
    save(beside(*[panel for panel in panels if panel is not None]), path)


def window_panel(records: Records) -> Any:
    """Plot the reach of each seed against its window, with the line on which reach is the window."""
    runs = records.runs[records.runs["stage"].isin(["W_1M", "W_2M", "W_4M"])]
    if runs.empty:
        return None
    rows: list[Row] = []
    for _, run in runs.iterrows():
        tokens = f"{run['tokens'] // 1_000_000}M tokens"
        shown = [(PLAIN, tokens)]
        if run["stage"] == "W_1M":
            shown += [(HALF, f"{tokens}, STRING"), (DCA, f"{tokens}, DCA")]
        for method, name in shown:
            reach = run[method]
            outcome = BEYOND if reach >= run[f"{method} last"] else looks.RUN
            if math.isnan(reach):  # on the lower edge, so that the median counts it
                reach, outcome = LIMITS[0], looks.BELOW
            rows.append({"window": run["window"], "reach": reach, "series": name, "outcome": outcome})
    table = pd.DataFrame(rows).sort_values(["series", "window"])
    names = sorted(table["series"].unique(), key=lambda name: ("STRING" in name, "DCA" in name, name))
    style: dict[str, Any] = {"log_x": True, "log_y": True, "names": names, "width": WIDTH, "y_limits": LIMITS}
    style |= {"x_title": "window (tokens)", "y_title": "reach (tokens)"}
    middles = table.groupby(["series", "window"])["reach"].median().reset_index()
    ends = [{"window": window, "reach": window, "series": "window"} for window in sorted(set(table["window"]))]
    equal = draw(ends, "window", "reach", color=GREY, marks=False, **style | {"names": None})
    lines = draw(middles, "window", "reach", "series", marks=False, **style)
    points = draw(table, "window", "reach", "series", kind="point", outcome="outcome", legend=False, **style)
    return titled(layer(equal, lines, points), "Reach against window; grey: reach = window", runs)


def frequency_panel(records: Records) -> Any:
    """Plot accuracy against f at equal demand, the two conditions of a seed joined by a line."""
    runs = records.runs[(records.runs["stage"] == "S2") & records.runs["branch"].isin(["A", "B"])]
    if runs.empty:
        return None
    rows = []
    for _, run in runs.iterrows():
        score = accuracy(records, "S2", run["branch"], *NEAR).get(run["seed"])
        rows.append({"f": run["f"], "accuracy": score, "seed": f"seed {run['seed']}"})
    style: dict[str, Any] = {"log_x": True, "percent": True, "y_limits": (0, 1), "width": WIDTH}
    style |= {"x_title": "f at 120 tokens (pairs trained)", "y_title": f"accuracy at {NEAR[0]} to {NEAR[1]} tokens"}
    return titled(draw(rows, "f", "accuracy", "seed", **style), "Tenfold f at equal demand (S2)", runs)


def gap_panel() -> Any:
    """Plot the mean accuracy by distance of the conditions of S1, which all have the same f."""
    plan = PLANS["S1"]
    tests, _ = read([GAPS])
    tests = tests[(tests["method"] == "rope+plain") & tests["arm"].isin(plan.arms)].dropna(subset=["score"])
    means = tests.groupby(["arm", "distance"])["score"].mean().reset_index()
    means["arm"] = means["arm"].map(GAP_NAMES)
    style: dict[str, Any] = {"percent": True, "y_limits": (0, 1), "width": WIDTH, "names": [*GAP_NAMES.values()]}
    style |= {"x_title": "distance (tokens)", "y_title": "accuracy"}
    chart = draw(means, "distance", "score", "arm", **style)
    return titled(
        chart, "Equal f, other demand; ids with gaps (S1)", tests.groupby(["arm", "seed"]).size().reset_index()
    )


def titled(chart: Any, title: str, runs: pd.DataFrame) -> Any:
    """Add a title with the number of seeds."""
    by = next(name for name in ("branch", "arm") if name in runs)
    sizes = runs.groupby([name for name in ("stage", by) if name in runs])["seed"].nunique()
    n = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    return chart.properties(title=f"{title}, n = {n}")
