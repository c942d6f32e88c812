"""Records of the experiments of docs/findings.md: accuracy, reach, position frequency and demand of each run."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.tables import find_tables, read_tests
from experiments.window.plans import STAGES, methods_at
from lab.core.types import Row
from lab.core.yaml import read_yaml
from lab.counts import SavedCounts
from lab.probe.reach import recompute_reach
from lab.runs.tables import unpacked

THRESHOLD = 0.8
ACQUIRED = 0.5  # accuracy of a run that has acquired retrieval, in the mean over the distances tested
PLAIN, THIRD, HALF, DCA, DCA_QUARTER = METHODS = ("plain", "STRING 1/3", "STRING 1/2", "DCA 1/2", "DCA 1/4")
NEAR, BAND = (72, 120), (72, 179)  # of S2


class Records(NamedTuple):
    """Accuracy by method, prompt length and distance, and a row for each run: its reach by method, f and demand."""

    cells: pd.DataFrame
    runs: pd.DataFrame


def read_records(folder: Path) -> Records:
    """Read the tables of a folder.

    Raises: ConfigError if there are none.
    """
    with unpacked(find_tables(folder, STAGES)) as places:
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
    rows = list(read_tests(place))
    names = list(dict.fromkeys(row["method"] for row in rows))  # in the order of methods_at
    assert len(names) in (1, len(methods_at(window))), "a run was tested under all methods, or plain only"
    reaches = {}
    acquired = False
    for label, name in zip(METHODS, names, strict=False):
        filled = {}  # prompts that fill the window, by distance
        for row in rows:
            if row["method"] != name or row["metric"] == "reach":
                continue
            cell = {**about, "method": label, "prompt": row.get("prompt", window)}
            cells.append({**cell, "distance": row["distance"], "score": row["score"]})
            if "prompt" not in row:
                filled[row["distance"]] = row
        if label == PLAIN:
            acquired = float(np.mean([row["score"] for row in filled.values()])) >= ACQUIRED
        reach = recompute_reach(filled, THRESHOLD)
        reaches[label] = math.nan if reach["reach"] is None else reach["reach"]
        reaches[f"{label} last"] = reach["last_distance"]
    counts = SavedCounts.read(place / "counts.npz")
    provenance = json.loads((place / "provenance.json").read_text("utf-8"))
    # Of S2 the question is demand beyond 64 tokens at a window of 192.
    middle = window // 2 if stage.startswith("W") else 120
    demand = {"f": int(counts.f[middle]), "g": counts.g_from(middle if stage.startswith("W") else 65)}
    runs.append({**about, "acquired": acquired, "tokens": config["train"]["tokens"], **reaches, **demand, **provenance})


def has_acquired(place: Path) -> bool:
    """Return whether a run has acquired retrieval."""
    return bool(collect([place]).runs["acquired"][0])


def accuracy(
    records: Records, stage: str, branch: str, low: int, high: int, method: str = PLAIN, prompt: int | None = None
) -> "pd.Series[float]":
    """Average the accuracy of each seed over the distances of a band, in prompts of the window or shorter."""
    cells = records.cells
    # Cells of a shorter prompt are told from those of a full one by its length.
    length = cells["window"] if prompt is None else prompt
    chosen = (cells["stage"] == stage) & (cells["branch"] == branch) & (cells["method"] == method)
    chosen &= (cells["prompt"] == length) & (cells["distance"] >= low) & (cells["distance"] <= high)
    return cells[chosen].groupby("seed")["score"].mean()
