"""Verdicts on the predictions of docs/findings.md.

A run is one observation. Branches of a base model are compared by the differences of pairs, with limits of the t
distribution over seeds. Verdicts are those of the predictions: *equal* if the 90% limits lie within the margin, *shown*
if the 95% limits lie on the predicted side of 0 and p, adjusted by Holm over an experiment, is below .05. Fewer than
FEWEST seeds are described and get no verdict.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from eval.engine.seeds import paired_t
from eval.engine.statistics import holm
from experiments.window.plans import DISTANCES
from experiments.window.records import BAND, DCA, HALF, NEAR, PLAIN, Records, accuracy
from lab.core.types import Row
from lab.runs.arms import FEWEST, mean_with_limits

Cells = tuple[Any, ...]
MARGIN = 0.1  # in accuracy, within which a difference counts as none


class Prediction(NamedTuple):
    """A prediction about the differences of seeds: that they are equal, or `least` or more."""

    name: str
    experiment: str
    differences: Callable[[Records], "pd.Series[float]"]
    least: float | None = None
    is_one_sided: bool = False  # an equality that only a difference in favour of the first refutes


def ln_growth(records: Records) -> "pd.Series[float]":
    """Compute the least difference of ln reach of each seed, window 384 less 192, that its tests allow.

    A reach of 192 that is the end of the test is below 192, one of 384 is at least the end; none is the least
    distance tested.
    """
    runs = records.runs[records.runs["stage"] == "W_1M"]
    shorter = runs[runs["branch"] == "192"].set_index("seed")
    longer = runs[runs["branch"] == "384"].set_index("seed")
    # Bounds are taken on the side that makes the difference smaller, so that growth is never overstated.
    is_end = shorter[PLAIN] >= shorter[f"{PLAIN} last"]
    most = shorter[PLAIN].mask(is_end, 192)  # without a reach there is no difference
    return np.log(longer[PLAIN].fillna(DISTANCES[0])) - np.log(most)


def compare(one: Cells, other: Cells) -> Callable[[Records], "pd.Series[float]"]:
    """Compare two conditions, whose cells are the arguments of `accuracy`."""
    return lambda records: accuracy(records, *one) - accuracy(records, *other)


def far_cells(window: int, stage: str = "W_1M", method: str = PLAIN) -> Cells:
    """Name the cells of a window whose distances are at least half of it."""
    return stage, str(window), window // 2, window, method


LARGEST = "W_1M", "768"
A_NEAR_ONLY = "S2_crossed", "A none beyond 64", *BAND
PREDICTIONS = (
    Prediction("S2a: A less B at 72 to 120", "S2", compare(("S2", "A", *NEAR), ("S2", "B", *NEAR)), is_one_sided=True),
    Prediction("S2b: A less B at 72 to 179", "S2", compare(("S2", "A", *BAND), ("S2", "B", *BAND)), is_one_sided=True),
    Prediction(
        "S2c: A unmasked less none beyond 64", "S2", compare(("S2_crossed", "A unmasked", *BAND), A_NEAR_ONLY), 0.2
    ),
    Prediction(
        "S2d: none beyond 64, A less B",
        "S2",
        compare(A_NEAR_ONLY, ("S2_crossed", "B none beyond 64", *BAND)),
        is_one_sided=True,
    ),
    Prediction("W1: far accuracy, 192 less 384", "W", compare(far_cells(192), far_cells(384)), 0.1),
    Prediction("W1: far accuracy, 384 less 768", "W", compare(far_cells(384), far_cells(768)), 0.1),
    Prediction("W2: ln reach, 384 less 192, at least", "W", ln_growth, 0.0),
    Prediction(
        "W3: far accuracy at 384, STRING 1/2 less plain", "W", compare(far_cells(384, method=HALF), far_cells(384)), 0.2
    ),
    Prediction(
        "W3: far accuracy at 384, DCA 1/2 less plain", "W", compare(far_cells(384, method=DCA), far_cells(384)), 0.2
    ),
    Prediction(
        "W3: far accuracy at 768, STRING 1/2 less plain", "W", compare(far_cells(768, method=HALF), far_cells(768)), 0.2
    ),
    Prediction(
        "W3: far accuracy at 768, DCA 1/2 less plain", "W", compare(far_cells(768, method=DCA), far_cells(768)), 0.2
    ),
    Prediction(
        "W4: at 768, 24 to 112, prompts of 256 less 768",
        "W",
        compare((*LARGEST, 24, 112, PLAIN, 256), (*LARGEST, 24, 112)),
        0.1,
    ),
    Prediction(
        "W5: at 768, 224 to 496, prompts of 512 less 768",
        "W",
        compare((*LARGEST, 224, 496, PLAIN, 512), (*LARGEST, 224, 496)),
    ),
    Prediction("W6: far accuracy at 768, 4M tokens less 1M", "W", compare(far_cells(768, "W_4M"), far_cells(768)), 0.0),
    Prediction(
        "W7: 1.9M parameters, 192 less 768", "W", compare(far_cells(192, "W_larger"), far_cells(768, "W_larger")), 0.0
    ),
)


def verdict_rows(records: Records) -> Iterator[Row]:
    """Test each prediction of which there are runs, with p adjusted within its experiment."""
    for experiment in ("S2", "W"):
        rows: list[tuple[Prediction, Row]] = []
        for prediction in PREDICTIONS:
            if prediction.experiment != experiment:
                continue
            differences = prediction.differences(records).dropna()
            if len(differences):
                rows.append((prediction, compare_seeds(prediction.name, differences.tolist())))
        yield from add_verdicts(rows)


def add_verdicts(rows: Sequence[tuple[Any, Row]]) -> Iterator[Row]:
    """Adjust p over the predictions of an experiment, and add the verdicts."""
    # Equalities have no p, and do not count among the m of Holm's correction.
    tested = [row for prediction, row in rows if prediction.least is not None]
    adjusted = holm(pd.Series([row["p"] for row in tested], dtype=float))
    for row, p in zip(tested, adjusted, strict=True):
        row["p, Holm"] = p
    for prediction, row in rows:
        yield row | {"verdict": judge_prediction(prediction, row)}


def compare_seeds(name: str, differences: Sequence[float], ends: tuple[float, float] | None = None) -> Row:
    """Compute the mean difference, its limits and p."""
    mean, low, high = mean_with_limits(differences, ends=ends)
    _, low_90, high_90 = mean_with_limits(differences, 0.90, ends)
    p = paired_t(differences, name).p if len(differences) >= FEWEST else math.nan
    return {
        "prediction": name,
        "n": len(differences),
        "difference": mean,
        "low": low,
        "high": high,
        "low 90": low_90,
        "high 90": high_90,
        "p": p,
        "p, Holm": math.nan,
    }


def judge_prediction(prediction: Any, row: Mapping[str, Any]) -> str:
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
