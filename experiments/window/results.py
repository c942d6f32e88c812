"""The results of docs/findings.md from the records: conditions, verdicts on the predictions, and pictures.

A run is one observation. Branches of a base model are compared by the differences of pairs, with limits of the t
distribution over seeds. Verdicts are those of the predictions: *equal* if the 90% limits lie within the margin, *shown*
if the 95% limits lie on the predicted side of 0 and p, adjusted by Holm over an experiment, is below .05. Fewer than
FEWEST seeds are described and get no verdict.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from eval.engine.rows import to_text
from eval.engine.seeds import paired_t
from eval.engine.statistics import holm
from experiments.window.figures import plot_findings, plot_grid
from experiments.window.plans import DCA, DISTANCES, HALF, METHODS, PLAIN
from experiments.window.records import BAND, NEAR, Records, accuracy
from lab.core.types import Row
from lab.runs.arms import FEWEST, mean_with_limits

Differences = Callable[[Records], "pd.Series[float]"]
MARGIN = 0.1  # in accuracy, within which a difference counts as none
HEADING = "\n## Results\n"  # of the page


class Prediction(NamedTuple):
    """A prediction about the differences of seeds: that they are equal, or `least` or more."""

    name: str
    differences: Differences
    least: float | None = None
    is_one_sided: bool = False  # an equality that only a difference in favour of the first refutes


def ln_growth(records: Records) -> "pd.Series[float]":
    """Compute the least difference of ln reach of each seed, window 384 less 192, that its tests allow.

    A reach of 192 that is the end of the test is below 192, one of 384 is at least the end; none is the least
    distance tested.
    """
    runs = records.runs[records.runs["stage"] == "W_1M"].set_index("seed")
    shorter, longer = (runs[runs["branch"] == branch] for branch in ("192", "384"))
    # Bounds are taken on the side that makes the difference smaller, so that growth is never overstated.
    is_end = shorter[PLAIN] >= shorter[f"{PLAIN} last"]
    most = shorter[PLAIN].mask(is_end, 192)  # without a reach there is no difference
    return np.log(longer[PLAIN].fillna(DISTANCES[0])) - np.log(most)


def compare(one: Sequence[Any], other: Sequence[Any]) -> Differences:
    """Compare two conditions, whose cells are the arguments of `accuracy`."""
    return lambda records: accuracy(records, *one) - accuracy(records, *other)


def compare_methods(window: int, method: str) -> Differences:
    """Compare a method with none, at the distances that are at least half of a window."""
    return compare(far_cells(window, method=method), far_cells(window))


def far_cells(window: int, stage: str = "W_1M", method: str = PLAIN) -> Sequence[Any]:
    """Name the cells of a window whose distances are at least half of it."""
    return stage, str(window), window // 2, window, method


LARGEST = "W_1M", "768"
A_NEAR_ONLY = "S2_crossed", "A none beyond 64", *BAND
PREDICTIONS = {
    "S2": (
        Prediction("S2a: A less B at 72 to 120", compare(("S2", "A", *NEAR), ("S2", "B", *NEAR)), is_one_sided=True),
        Prediction("S2b: A less B at 72 to 179", compare(("S2", "A", *BAND), ("S2", "B", *BAND)), is_one_sided=True),
        Prediction(
            "S2c: A unmasked less none beyond 64", compare(("S2_crossed", "A unmasked", *BAND), A_NEAR_ONLY), 0.2
        ),
        Prediction(
            "S2d: none beyond 64, A less B",
            compare(A_NEAR_ONLY, ("S2_crossed", "B none beyond 64", *BAND)),
            is_one_sided=True,
        ),
    ),
    "W": (
        Prediction("W1: far accuracy, 192 less 384", compare(far_cells(192), far_cells(384)), 0.1),
        Prediction("W1: far accuracy, 384 less 768", compare(far_cells(384), far_cells(768)), 0.1),
        Prediction("W2: ln reach, 384 less 192, at least", ln_growth, 0.0),
        Prediction("W3: far accuracy at 384, STRING 1/2 less plain", compare_methods(384, HALF), 0.2),
        Prediction("W3: far accuracy at 384, DCA 1/2 less plain", compare_methods(384, DCA), 0.2),
        Prediction("W3: far accuracy at 768, STRING 1/2 less plain", compare_methods(768, HALF), 0.2),
        Prediction("W3: far accuracy at 768, DCA 1/2 less plain", compare_methods(768, DCA), 0.2),
        Prediction(
            "W4: at 768, 24 to 112, prompts of 256 less 768",
            compare((*LARGEST, 24, 112, PLAIN, 256), (*LARGEST, 24, 112)),
            0.1,
        ),
        Prediction(
            "W5: at 768, 224 to 496, prompts of 512 less 768",
            compare((*LARGEST, 224, 496, PLAIN, 512), (*LARGEST, 224, 496)),
        ),
        Prediction("W6: far accuracy at 768, 4M tokens less 1M", compare(far_cells(768, "W_4M"), far_cells(768)), 0.0),
        Prediction(
            "W7: 1.9M parameters, 192 less 768", compare(far_cells(192, "W_larger"), far_cells(768, "W_larger")), 0.0
        ),
    ),
}


def condition_tables(records: Records) -> list[list[Row]]:
    """Return tables with a row for each condition: accuracy by method with f and demand, reach of S2, and that of W."""
    accuracies: list[Row] = []
    reach_of_s2: list[Row] = []
    reach_of_w: list[Row] = []
    for (stage, branch), mine in records.runs.groupby(["stage", "branch"], sort=False):
        condition: Row = {"condition": f"{stage} {branch}", "n": len(mine)}
        low, high = BAND
        methods: Sequence[str] = METHODS[:1]
        reaches = reach_of_s2
        if stage.startswith("W"):
            window = int(mine["window"].iloc[0])
            low, high = window // 2, window
            methods = METHODS
            reaches = reach_of_w
        means: Row = {"f": round(mine["f"].mean()), "g": round(mine["g"].mean()), "distances": f"{low} to {high}"}
        ranges: Row = {}
        for method in methods:
            means[method] = f"{accuracy(records, stage, branch, low, high, method).mean():.2f}"
            ranges[method] = write_range(mine[method], mine[f"{method} last"])
        accuracies.append(condition | means)
        if stage.startswith("S2") or not branch.startswith("base"):  # bases of W are continued until they retrieve
            reaches.append(condition | ranges)
    return [accuracies, reach_of_s2, reach_of_w]


def write_range(reaches: "pd.Series[float]", last: "pd.Series[float]") -> str:
    """Write the median reach of seeds, the least and the most; none, a dash, counts as the least.

    Example:
        >>> write_range(pd.Series([179.0, 135.4, math.nan]), pd.Series([179, 179, 179]))
        '135 (- to 179+)'
    """
    texts = []
    for reach, end in sorted(zip(reaches.fillna(0.0), last, strict=True)):
        text = f"{reach:.0f}" if reach else "-"
        texts.append(f"{text}+" if reach >= end else text)
    return f"{texts[(len(texts) - 1) // 2]} ({texts[0]} to {texts[-1]})"


def verdict_rows(records: Records) -> Iterator[Row]:
    """Test each prediction of which there are runs, with p adjusted within its experiment."""
    for predictions in PREDICTIONS.values():
        rows: list[tuple[Prediction, Row]] = []
        for prediction in predictions:
            differences = prediction.differences(records).dropna().tolist()
            if differences:
                rows.append((prediction, compare_seeds(prediction.name, differences)))
        # Equalities have no p, and do not count among the m of Holm's correction.
        tested = [row for prediction, row in rows if prediction.least is not None]
        adjusted = holm(pd.Series([row["p"] for row in tested], dtype=float))
        for row, p in zip(tested, adjusted, strict=True):
            row["p, Holm"] = p
        for prediction, row in rows:
            yield row | {"verdict": judge_prediction(prediction, row)}


def compare_seeds(name: str, differences: Sequence[float]) -> Row:
    """Compute the mean difference, its limits and p."""
    mean, low, high = mean_with_limits(differences)
    _, low_90, high_90 = mean_with_limits(differences, 0.90)
    return {
        "prediction": name,
        "n": len(differences),
        "difference": mean,
        "low": low,
        "high": high,
        "low 90": low_90,
        "high 90": high_90,
        "p": paired_t(differences, name).p if len(differences) >= FEWEST else math.nan,
        "p, Holm": math.nan,
    }


def judge_prediction(prediction: Prediction, row: Mapping[str, Any]) -> str:
    """Return the verdict on a prediction by its limits."""
    if row["n"] < FEWEST or math.isnan(row["low"]):
        return "described"
    if prediction.least is None:
        # Two one-sided tests at 5% are the 90% limits.
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


def describe(records: Records, out: Path | None = None) -> None:
    """Print the conditions and the verdicts; into a folder, plot them and write them into its findings.md."""
    titles = "Mean accuracy", "Reach, median (least to most)", "Reach, median (least to most)"
    parts = []
    for title, rows in zip(titles, condition_tables(records), strict=True):
        if rows:
            parts.append(f"{title}\n{to_text(rows)}")
    if verdicts := list(verdict_rows(records)):
        forms = dict.fromkeys(set(verdicts[0]) - {"prediction", "n", "verdict"}, ".3f")
        parts.append(to_text(verdicts, forms))
    text = "\n\n".join(parts)
    print(text)
    if out is not None:
        page = out / "findings.md"
        # The tables are in the first fenced block below the heading.
        if page.exists():
            above, below = page.read_text("utf-8").split(HEADING)
            before, _, after = below.split("```", 2)
            page.write_text(f"{above}{HEADING}{before}```\n{text}\n```{after}", "utf-8")
        plot_findings(records, out / "findings.png")
        if (records.runs["stage"] == "W_1M").any():
            plot_grid(records, out / "prompts.png")
