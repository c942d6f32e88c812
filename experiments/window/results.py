"""The results of docs/findings.md from the records: conditions, verdicts on the predictions, and pictures.

A run is one observation. Branches of a base model are compared by the differences of pairs, with limits of the t
distribution over seeds. Verdicts are those of the predictions: *equal* if the 90% limits lie within the margin, *shown*
if the 95% limits lie on the predicted side of 0 and p, adjusted by Holm over an experiment, is below .05. Fewer than
FEWEST seeds are described and get no verdict.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from eval.engine.text import to_text
from experiments.window.figures import plot_findings, plot_grid
from experiments.window.plans import DCA, DCA_QUARTER, DISTANCES, HALF, METHODS, PLAIN
from experiments.window.records import BAND, ESSAYS, GENERATED, NEAR, Records, accuracy
from lab.core.types import Row
from lab.results.statistics import FEWEST, holm, mean_with_limits, paired_t

Differences = Callable[[Records], "pd.Series[float]"]
MARGIN = 0.1  # in accuracy, within which a difference counts as none
HEADING = "\n## Results\n"  # of the page


class Prediction(NamedTuple):
    """A prediction about the differences of seeds: that they are equal within `margin`, or `least` or more."""

    name: str
    differences: Differences
    least: float | None = None
    is_one_sided: bool = False  # an equality that only a difference in favour of the first refutes
    margin: float = MARGIN
    is_described: bool = False  # found in records that had been seen


def ln_growth(records: Records, stage: str) -> "pd.Series[float]":
    """Compute the least difference of ln reach of each seed, window 384 less 192, that its tests allow.

    A reach of 192 that is the end of the test is below 192, one of 384 is at least the end; none is the least
    distance tested.
    """
    runs = records.runs[records.runs["stage"] == stage].set_index("seed")
    shorter, longer = (runs[runs["branch"] == branch] for branch in ("192", "384"))
    # Bounds are taken on the side that makes the difference smaller, so that growth is never overstated.
    is_end = shorter[PLAIN] >= shorter[f"{PLAIN} last"]
    most = shorter[PLAIN].mask(is_end, 192)  # without a reach there is no difference
    return np.log(longer[PLAIN].fillna(DISTANCES[0])) - np.log(most)


def ln_ratio(one: tuple[str, str, str], other: tuple[str, str, str]) -> Differences:
    """Compare ln reach of two conditions (stage, branch, column), or their accuracies if too few reaches are inside.

    A reach that is not determined, or at the end of the test, is a bound, and no pair has one.
    """

    def differences(records: Records) -> "pd.Series[float]":
        logs, means = [], []
        for stage, branch, column in (one, other):
            runs = records.runs[(records.runs["stage"] == stage) & (records.runs["branch"] == branch)]
            # Before a stage is recorded, its columns are missing.
            runs = runs.set_index("seed").reindex(columns=[column, f"{column} last"])
            logs.append(np.log(runs[column].where(runs[column] < runs[f"{column} last"])))
            text = column.partition(", ")[2] or GENERATED
            means.append(accuracy(records, stage, branch, *ALL, text=text))
        pairs = (logs[0] - logs[1]).dropna()
        return pairs if len(pairs) >= FEWEST_PAIRS else means[0] - means[1]

    return differences


def ln_f_at_reach(records: Records) -> "pd.Series[float]":
    """Compare ln f at the reach of windows of 768 and 384 of W_1M."""
    runs = records.runs[records.runs["stage"] == "W_1M"].set_index("seed")
    longer, shorter = (runs[runs["branch"] == branch]["f at reach"] for branch in ("768", "384"))
    return np.log(longer) - np.log(shorter)


def compare(one: Sequence[Any], other: Sequence[Any]) -> Differences:
    """Compare two conditions, whose cells are the arguments of `accuracy`."""
    return lambda records: accuracy(records, *one) - accuracy(records, *other)


def compare_methods(window: int, method: str, stage: str = "W_1M", text: str = GENERATED) -> Differences:
    """Compare a method with none, at the distances that are at least half of a window."""
    return compare(far_cells(window, stage, method, text), far_cells(window, stage, text=text))


def far_cells(window: int, stage: str = "W_1M", method: str = PLAIN, text: str = GENERATED) -> Sequence[Any]:
    """Name the cells of a window whose distances are at least half of it."""
    branch = str(window)
    if (stage, branch) == ("L", "768"):
        stage, branch = "D", "4 log"  # trained once
    return stage, branch, window // 2, window, method, None, text


def predict_windows(stage: str, prefix: str, text: str = GENERATED, least: float = 0.1) -> Iterator[Prediction]:
    """Predict that far accuracy falls as the window doubles."""
    for window in (192, 384):
        one, other = (far_cells(size, stage, text=text) for size in (window, 2 * window))
        name = f"{prefix}: far accuracy, {window} less {2 * window}"
        yield Prediction(name, compare(one, other), least)


LARGEST = "W_1M", "768"
ALL = 0, 768  # all distances
FEWEST_PAIRS = 4  # of reaches inside the test
DG_BANDS = ((24, 112), (144, 368), (432, 752))
NEAR_OF_D, FAR_OF_D, MIDDLE_OF_D = (24, 112), (272, 496), (224, 368)
STATED, REVERSED, ONE_UNIFORM = ("D", "4 log"), ("D", "4 log reversed"), ("D", "1 uniform")
A_NEAR_ONLY = "S2_crossed", "A none beyond 64", *BAND
IN_ESSAYS = f"{PLAIN}, {ESSAYS}"


def describe_afterwards() -> Iterator[Prediction]:
    """Compare conditions of W in ways that were chosen after their records had been seen."""
    yield Prediction("ln f at reach, 768 less 384", ln_f_at_reach, is_described=True)
    for stage in ("W_1M", "W_2M", "W_4M"):
        cells = (stage, "768", 192, 368, PLAIN, 384), (stage, "384", 192, 368)
        yield Prediction(f"{stage}, prompts of 384, 192 to 368: 768 less 384", compare(*cells), is_described=True)
    cells = ("W_1M", "384", 96, 176, PLAIN, 192), ("W_1M", "192", 96, 176)
    yield Prediction("W_1M, prompts of 192, 96 to 176: 384 less 192", compare(*cells), is_described=True)


def predict_sizes() -> Iterator[Prediction]:
    """Predict the far end of larger models, as that of W."""
    for size, name in (("size_2M", "1.9M parameters"), ("size_6M", "5.8M parameters")):
        one, other = far_cells(192, size), far_cells(768, size)
        yield Prediction(f"{name}: far accuracy, 192 less 768", compare(one, other), 0.3)
        title = f"{name}: far accuracy at 768, DCA 1/4 less plain"
        yield Prediction(title, compare_methods(768, DCA_QUARTER, size), 0.3)


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
        *predict_windows("W_1M", "W1"),
        Prediction("W2: ln reach, 384 less 192, at least", partial(ln_growth, stage="W_1M"), 0.0),
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
    "D": (
        Prediction(
            "Da: 24 to 112, (1, log) less (4, log)", compare(("D", "1 log", *NEAR_OF_D), (*STATED, *NEAR_OF_D)), 0.3
        ),
        Prediction(
            "Da: 24 to 112, (1, uniform) less (4, uniform)",
            compare((*ONE_UNIFORM, *NEAR_OF_D), ("D", "4 uniform", *NEAR_OF_D)),
            0.3,
        ),
        Prediction(
            "Db: 272 to 496, (4, uniform) less (1, log)",
            compare(("D", "4 uniform", *FAR_OF_D), ("D", "1 log", *FAR_OF_D)),
            0.3,
        ),
        Prediction(
            "Dc: all distances, (1, uniform) less (4, log)", compare((*ONE_UNIFORM, *ALL), (*STATED, *ALL)), 0.0
        ),
        Prediction(
            "De: 24 to 112, reversed less as stated", compare((*REVERSED, *NEAR_OF_D), (*STATED, *NEAR_OF_D)), 0.3
        ),
        Prediction(
            "Df: 224 to 368, as stated less reversed", compare((*STATED, *MIDDLE_OF_D), (*REVERSED, *MIDDLE_OF_D)), 0.3
        ),
        Prediction(
            "Dh: all distances, (4, uniform, shuffled) less (4, log)",
            compare(("D", "4 uniform shuffled", *ALL), (*STATED, *ALL)),
            0.1,
        ),
        Prediction(
            "L1: prompts of 384, 192 to 368, 768 less 384",
            compare((*STATED, 192, 368, PLAIN, 384), ("L", "384", 192, 368)),
            0.1,
        ),
        Prediction(
            "L2: prompts of 192, 96 to 176, 384 less 192",
            compare(("L", "384", 96, 176, PLAIN, 192), ("L", "192", 96, 176)),
            0.1,
        ),
        *predict_windows("L", "L, W1"),
        Prediction("L, W2: ln reach, 384 less 192, at least", partial(ln_growth, stage="L"), 0.0),
        *(
            Prediction(
                f"L, W3: far accuracy at {window}, {method} less plain", compare_methods(window, method, "L"), 0.2
            )
            for window in (384, 768)
            for method in (HALF, DCA)
        ),
        *predict_sizes(),
    ),
    "whole documents": (
        Prediction(
            "L: 384 without cut documents less 384, prompts of 384, 192 to 368",
            compare(("L", "384 whole", 192, 368), ("L", "384", 192, 368)),
        ),
        Prediction(
            "L: 768 less 384 without cut documents, prompts of 384, 192 to 368",
            compare((*STATED, 192, 368, PLAIN, 384), ("L", "384 whole", 192, 368)),
        ),
    ),
    "described afterwards": tuple(describe_afterwards()),
    "N": (
        *predict_windows("N", "N1, essays", ESSAYS),
        Prediction(
            "N2, essays: far accuracy at 768, DCA 1/4 less plain", compare_methods(768, DCA_QUARTER, "N", ESSAYS), 0.2
        ),
        Prediction(
            "N3: ln reach at 384, natural in essays less generated",
            ln_ratio(("N", "384", IN_ESSAYS), ("L", "384", PLAIN)),
            margin=0.15,
        ),
        Prediction(
            "N3: ln reach at 768, natural in essays less generated",
            ln_ratio(("N", "768", IN_ESSAYS), (*STATED, PLAIN)),
            margin=0.15,
        ),
        Prediction(
            "N4: ln reach at 768, (4, log) in essays less generated",
            ln_ratio((*STATED, IN_ESSAYS), (*STATED, PLAIN)),
            margin=0.15,
        ),
    ),
}


def condition_tables(records: Records) -> Iterator[tuple[str, list[Row]]]:
    """Yield tables with a row for each condition: accuracy, reach and dips of S2 and W, then bands of D, L and N."""
    accuracies: list[Row] = []
    reach_of_s2: list[Row] = []
    reach_of_w: list[Row] = []
    dips: list[Row] = []
    bands: list[Row] = []
    for (stage, branch), mine in records.runs.groupby(["stage", "branch"], sort=False):
        condition: Row = {"condition": f"{stage} {branch}", "n": len(mine)}
        if not stage.startswith(("S2", "W")):
            if not branch.startswith("base"):
                bands.append(condition | describe_bands(records, stage, branch, mine))
            continue
        low, high = BAND
        methods: Sequence[str] = METHODS[:1]
        if stage.startswith("W"):
            window = int(mine["window"].iloc[0])
            low, high = window // 2, window
            methods = METHODS
        means: Row = {"f": round(mine["f"].mean()), "g": round(mine["g"].mean()), "distances": f"{low} to {high}"}
        ranges: Row = {}
        counts: Row = {}
        for method in methods:
            means[method] = f"{accuracy(records, stage, branch, low, high, method).mean():.2f}"
            ranges[method] = write_range(mine[method], mine[f"{method} last"])
            counts[method] = " ".join(f"{n:.0f}" for n in mine[f"{method} dips"])
        means["plain, all"] = f"{accuracy(records, stage, branch, *ALL).mean():.2f}"
        accuracies.append(condition | means)
        if stage.startswith("S2"):
            reach_of_s2.append(condition | ranges)
        elif not branch.startswith("base"):  # bases of W are continued until they retrieve
            reach_of_w.append(condition | ranges)
            dips.append(condition | counts)
    yield "Mean accuracy", accuracies
    for table in (reach_of_s2, reach_of_w):
        yield "Reach, median (least to most)", table
    yield "Dips: distances tested below reach at which accuracy is below the threshold, by seed", dips
    yield "Mean accuracy over bands of distances, plain and under DCA 1/4, and reach, plain", bands


def describe_bands(records: Records, stage: str, branch: str, runs: pd.DataFrame) -> Row:
    """Describe a condition of D, L or N: mean accuracy by band, plain and under DCA 1/4, and reach."""
    row: Row = {}
    natural = stage == "N"
    text = ESSAYS if natural else GENERATED
    for method, short in ((PLAIN, ""), (DCA_QUARTER, "DCA ")):
        for low, high in DG_BANDS:
            scores = accuracy(records, stage, branch, low, high, method, text=text)
            row[f"{short}{low}-{high}"] = f"{scores.mean():.2f}" if len(scores) else "-"
    row["all"] = f"{accuracy(records, stage, branch, *ALL, text=text).mean():.2f}"
    row["reach"] = write_range(runs[PLAIN], runs[f"{PLAIN} last"])
    if IN_ESSAYS in runs and runs[f"{IN_ESSAYS} last"].notna().all():
        row["in essays"] = write_range(runs[IN_ESSAYS], runs[f"{IN_ESSAYS} last"])
    return row


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
    median = texts[(len(texts) - 1) // 2]
    return f"{median} ({texts[0]} to {texts[-1]})" if len(texts) > 1 else median


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
    if prediction.is_described or row["n"] < FEWEST or math.isnan(row["low"]):
        return "described"
    if prediction.least is None:
        # Two one-sided tests at 5% are the 90% limits.
        margin = prediction.margin
        if row["low 90"] > -margin and row["high 90"] < margin:
            return "equal"
        if prediction.is_one_sided:
            is_refuted = row["low"] > 0 and row["difference"] >= margin
        else:
            is_refuted = row["low"] > margin or row["high"] < -margin
        return "refuted" if is_refuted else "open"
    if row["high"] < prediction.least:
        return "refuted"
    if row["low"] > 0 and row["p, Holm"] < 0.05:
        return "shown" if row["difference"] >= prediction.least else "shown, but less than predicted"
    return "open"


def describe(records: Records, out: Path | None = None) -> None:
    """Print the conditions and the verdicts; into a folder, plot them and write them into its findings.md."""
    parts = []
    for title, rows in condition_tables(records):
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
