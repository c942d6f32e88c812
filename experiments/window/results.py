"""The results of docs/findings.md from the records: conditions and verdicts on the predictions.

A run is one observation. Branches of a base model are compared by the differences of pairs, with limits of the t
distribution over seeds. Verdicts are those of the predictions: *equal* if the 90% limits lie within the margin, *shown*
if the 95% limits lie on the predicted side of 0 and p, adjusted by Holm over an experiment, is below .05, *shown, less*
if the mean is then below the margin. Fewer than FEWEST seeds are described and get no verdict. The predictions are in
predictions.yaml.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from eval.engine.text import to_text
from experiments.window.plans import DCA_QUARTER, DISTANCES, METHODS, METHODS_OF_D, METHODS_OF_N, PLAIN
from lab.analysis.conditions import read_run_settings
from lab.analysis.table import ENDING, read_results, unpacked
from lab.core.errors import ConfigError
from lab.core.types import Row
from lab.core.yaml import read_yaml
from lab.counts import SavedCounts
from lab.probe.reach import ONE, recompute_reach
from lab.results.statistics import FEWEST, holm, mean_with_limits, paired_t

GENERATED, ESSAYS = "generated", "essays"  # texts in which numbers are hidden
IN_ESSAYS = f"{PLAIN}, {ESSAYS}"


class Records(NamedTuple):
    """Accuracy by text, method, prompt length and distance, and a row for each run: its reaches, f and demand."""

    cells: pd.DataFrame
    runs: pd.DataFrame

    def accuracy(
        self,
        stage: str,
        branch: str,
        low: int,
        high: int,
        method: str = PLAIN,
        prompt: int | None = None,
        text: str = GENERATED,
    ) -> "pd.Series[float]":
        """Average the accuracy of each seed over the distances of a band, in prompts of the window or shorter."""
        cells = self.cells
        length = cells["window"] if prompt is None else prompt
        chosen = (cells["stage"] == stage) & (cells["branch"] == branch) & (cells["method"] == method)
        chosen &= (cells["text"] == text) & (cells["prompt"] == length) & cells["distance"].between(low, high)
        return cells[chosen].groupby("seed")["score"].mean()

    def reach(self, stage: str, branch: str, column: str) -> tuple["pd.Series[float]", "pd.Series[float]"]:
        """Return a column of the runs of a condition by seed, and the last distance tested, infinite if it has none."""
        runs = self.runs[(self.runs["stage"] == stage) & (self.runs["branch"] == branch)].set_index("seed")
        # Before a stage is recorded, its columns are missing.
        runs = runs.reindex(columns=[column, f"{column} last"])
        return runs[column], runs[f"{column} last"].fillna(math.inf)


class Prediction(NamedTuple):
    """A prediction about the differences of seeds: that they are equal within `margin`, or `least` or more.

    `cells` are two conditions, whose differences are of the `measure`: arguments of Records.accuracy, or else of
    Records.reach.
    """

    name: str
    cells: Sequence[Any]
    measure: str = "accuracy"
    least: float | None = None
    is_one_sided: bool = False  # an equality that only a difference in favour of the first refutes
    margin: float = 0.1
    is_described: bool = False  # found in records that had been seen

    def differences(self, records: Records) -> "pd.Series[float]":
        """Compute the difference of each seed, which is missing if a reach is."""
        if self.measure == "accuracy":
            one, other = (records.accuracy(*cell) for cell in self.cells)
            return one - other
        (reach, last), (before, end) = (records.reach(*cell) for cell in self.cells)
        if self.measure == "growth":
            # The least growth that the tests allow: a reach at the end of the test may be the window of 192.
            return np.log(reach.fillna(DISTANCES[0])) - np.log(before.mask(before >= end, 192))
        # A reach that is not determined, or at the end of the test, is a bound, and no pair has one.
        pairs = (np.log(reach.where(reach < last)) - np.log(before.where(before < end))).dropna()
        if self.measure == "ln f at reach" or len(pairs) >= FEWEST:
            return pairs
        means = []
        for stage, branch, column in self.cells:
            means.append(records.accuracy(stage, branch, 0, 768, text=column.partition(", ")[2] or GENERATED))
        return means[0] - means[1]


def open_records(folder: Path) -> Records:
    """Read the tables of a folder.

    Raises: ConfigError if there are none.
    """
    tables = sorted(folder.glob(f"*{ENDING}"))
    if not tables:
        raise ConfigError(f"--results: {folder} has no records; train the runs first, without --results")
    with unpacked(tables) as places:
        return collect(places)


def collect(places: Iterable[Path]) -> Records:
    """Read run folders."""
    cells: list[Row] = []
    runs: list[Row] = []
    for place in places:
        stage, seed, branch = place.name.split("-", 2)
        settings = read_run_settings(place)
        window = int(settings["data.window"])
        about = {"stage": stage, "seed": int(seed), "branch": branch.replace("_", " "), "window": window}
        run = {**about, "tokens": settings["train.tokens"]}
        for text, folder in ((GENERATED, ""), (ESSAYS, "essays/"), ("docstrings", "docstrings/")):
            by_method: dict[str, list[Row]] = defaultdict(list)  # in the order of the stage's methods
            # Oldest first: a later result of the same tests replaces an earlier one.
            files = map(read_results, sorted(place.glob(f"eval/{folder}distance*.jsonl")))
            for row in chain.from_iterable(rows for _, rows in sorted(files, key=lambda file: file[0] or "")):
                if row["metric"] != "reach":
                    by_method[row["method"]].append({"prompt": window, **row, **about, "text": text})
            listed = {len(methods): methods for methods in (METHODS, METHODS_OF_D, METHODS_OF_N)}
            for label, rows in zip(listed.get(len(by_method), [PLAIN]), by_method.values(), strict=False):
                cells += [{**row, "method": label} for row in rows]
                run |= summarize_reach(label if text == GENERATED else f"{label}, {text}", rows)
        counts = SavedCounts.read(place / "counts.npz")
        middle = nearest = window // 2
        if stage.startswith("S2"):
            middle, nearest = 120, 65  # its question is demand beyond 64 tokens at a window of 192
        run |= {"f": int(counts.f[middle]), "g": counts.g_from(nearest), "counts": counts}
        run["f at reach"] = np.interp(run[PLAIN], np.arange(len(counts.f)), counts.f)  # not a number without a reach
        runs.append(run)
    return Records(pd.DataFrame(cells), pd.DataFrame(runs))


def summarize_reach(column: str, rows: Sequence[Row]) -> dict[str, float]:
    """Find reach in prompts that fill the window, the last distance tested, and the number of dips."""
    filled = {row["distance"]: row for row in rows if row["metric"] == ONE}
    # The predictions are about reach as it was defined then: of any share of distances that pass.
    reach = recompute_reach(filled, 0.8, 0.0)
    found = math.nan if reach["reach"] is None else reach["reach"]
    dips = [distance for distance, row in filled.items() if row["score"] < 0.8 and distance < found]
    return {column: found, f"{column} last": reach["last_distance"], f"{column} dips": len(dips)}


def has_acquired(place: Path) -> bool:
    """Return whether a run has acquired retrieval: half of the numbers, in the mean over the distances tested."""
    cells = collect([place]).cells
    is_full = (cells["method"] == PLAIN) & (cells["prompt"] == cells["window"])
    return bool(cells[is_full]["score"].mean() >= 0.5)


def condition_tables(records: Records) -> Iterator[tuple[str, list[Row]]]:
    """Yield tables with a row for each condition: accuracy, reach and dips of S2 and W, then bands of D, L and N."""
    tables: dict[str, list[Row]] = defaultdict(list)
    for (stage, branch), mine in records.runs.groupby(["stage", "branch"], sort=False):
        condition: Row = {"condition": f"{stage} {branch}", "n": len(mine)}
        is_base = branch.startswith("base")
        if not stage.startswith(("S2", "W")):
            if not is_base:
                tables["bands"].append(condition | describe_bands(records, stage, branch, mine))
            continue
        low, high = 72, 179
        methods: Sequence[str] = METHODS[:1]
        if stage.startswith("W"):
            window = int(mine["window"].iloc[0])
            low, high = window // 2, window
            methods = METHODS
        means: Row = {"f": round(mine["f"].mean()), "g": round(mine["g"].mean()), "distances": f"{low} to {high}"}
        ranges, dips = dict(condition), dict(condition)
        for method in methods:
            means[method] = f"{records.accuracy(stage, branch, low, high, method).mean():.2f}"
            ranges[method] = write_range(mine[method], mine[f"{method} last"])
            dips[method] = " ".join(f"{n:.0f}" for n in mine[f"{method} dips"])
        means["plain, all"] = f"{records.accuracy(stage, branch, 0, 768).mean():.2f}"
        tables["accuracy"].append(condition | means)
        if stage.startswith("S2"):
            tables["S2"].append(ranges)
        elif not is_base:  # bases of W are continued until they retrieve
            tables["W"].append(ranges)
            tables["dips"].append(dips)
    yield "Mean accuracy", tables["accuracy"]
    for name in ("S2", "W"):
        yield "Reach, median (least to most)", tables[name]
    yield "Dips: distances tested below reach at which accuracy is below the threshold, by seed", tables["dips"]
    yield "f of the branches of D", list(compare_frequency(records))
    yield (
        "Mean accuracy over bands of distances, plain and under DCA 1/4 (the same bands), and reach, plain",
        tables["bands"],
    )


def compare_frequency(records: Records) -> Iterator[Row]:
    """Compare f of the branches of D, which read the same documents: the largest over the least of each seed."""
    runs = records.runs[(records.runs["stage"] == "D") & ~records.runs["branch"].str.contains("base|gaps")]
    for distance in (48, 96, 192, 384, 560, 752):
        f = runs["counts"].map(lambda counts, distance=distance: counts.f[distance]).groupby(runs["seed"])
        yield {"distance": distance, "largest over least f, by seed": " ".join(f"{n:.3f}" for n in f.max() / f.min())}


def describe_bands(records: Records, stage: str, branch: str, runs: pd.DataFrame) -> Row:
    """Describe a condition of D, L or N: mean accuracy by band, plain and under DCA 1/4, and reach."""
    row: Row = {}
    text = ESSAYS if stage == "N" else GENERATED
    for method in (PLAIN, DCA_QUARTER):
        for name, low, high in (("near", 24, 112), ("mid", 144, 368), ("far", 432, 752)):
            scores = records.accuracy(stage, branch, low, high, method, text=text)
            column = f"{low}-{high}" if method == PLAIN else f"DCA {name}"
            row[column] = f"{scores.mean():.2f}" if len(scores) else "-"
    row["all"] = f"{records.accuracy(stage, branch, 0, 768, text=text).mean():.2f}"
    for column, method in (("reach", PLAIN), ("in essays", IN_ESSAYS)):
        if method in runs and runs[f"{method} last"].notna().all():
            row[column] = write_range(runs[method], runs[f"{method} last"])
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
    for predictions in read_yaml(Path(__file__).with_name("predictions.yaml")).values():
        rows: list[tuple[Prediction, Row]] = []
        for prediction in (Prediction(**values) for values in predictions):
            differences = prediction.differences(records).dropna().tolist()
            if differences:
                rows.append((prediction, compare_seeds(prediction.name, differences)))
        # Equalities have no p, and do not count among the m of Holm's correction.
        tested = [row for prediction, row in rows if prediction.least is not None]
        for row, p in zip(tested, holm(pd.Series([row["p"] for row in tested], dtype=float))):
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


def judge_prediction(prediction: Prediction, row: Row) -> str:
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
        return "shown" if row["difference"] >= prediction.least else "shown, less"
    return "open"


def print_results(records: Records) -> None:
    """Print the conditions and the verdicts."""
    parts = []
    for title, rows in condition_tables(records):
        if rows:
            parts.append(f"{title}\n{to_text(rows)}")
    if verdicts := list(verdict_rows(records)):
        parts.append(to_text(verdicts, dict.fromkeys(set(verdicts[0]) - {"prediction", "n", "verdict"}, ".3f")))
    print("\n\n".join(parts))
