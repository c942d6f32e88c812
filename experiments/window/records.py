"""Records of the experiments of docs/findings.md: accuracy, reach, position frequency and demand of each run."""

import json
import lzma
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.window.plans import METHODS, METHODS_OF_D, METHODS_OF_N, PLAIN, STAGES
from lab.analysis.table import ENDING, read_results, unpacked
from lab.core.errors import ConfigError
from lab.core.files import write_atomic
from lab.core.types import Row
from lab.core.yaml import read_yaml
from lab.counts import SavedCounts
from lab.probe.reach import recompute_reach

FILES = (  # of a run, in a table
    *("config.yaml", "environment.json", "provenance.json", "probes.jsonl"),
    *("counts.npz", "eval/**/*.jsonl"),
)
UNREAD = ("supervised", "g_unweighted")  # arrays of counts.npz that no command reads of tables, half of its size
FIRST_ALONE = "supervised_f"  # of which commands read the first number, all targets
GENERATED, ESSAYS, DOCSTRINGS = TEXTS = ("generated", "essays", "docstrings")  # in which numbers are hidden
THRESHOLD = 0.8
ACQUIRED = 0.5  # accuracy of a run that has acquired retrieval, in the mean over the distances tested
NEAR, BAND = (72, 120), (72, 179)  # of S2


class Records(NamedTuple):
    """Accuracy by text, method, prompt length and distance, and a row for each run: its reaches, f and demand."""

    cells: pd.DataFrame
    runs: pd.DataFrame


def read_records(folder: Path) -> Records:
    """Read the tables of a folder.

    Raises: ConfigError if there are none.
    """
    tables = sorted(folder.glob(f"*{ENDING}"))
    if not tables:
        raise ConfigError(f"--results: {folder} has no records; train the runs first, without --results")
    with unpacked(tables) as places:
        return collect(places)


def read_tests(run: Path, text: str = GENERATED) -> Iterator[Row]:
    """Read the results of eval.distance in a run folder, of prompts in generated or in a natural text, oldest first."""
    paths = run.glob("eval/distance*.jsonl" if text == GENERATED else f"eval/{text}/distance*.jsonl")
    for _, rows in sorted(map(read_results, sorted(paths)), key=lambda results: results[0] or ""):
        yield from rows


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
    reaches: dict[str, float] = {}
    for text in TEXTS:
        rows = list(read_tests(place, text))
        names = list(dict.fromkeys(row["method"] for row in rows))  # in the order of the stage's methods
        lists: dict[int, Sequence[str]] = {len(methods): methods for methods in (METHODS, METHODS_OF_D, METHODS_OF_N)}
        for label, name in zip(lists.get(len(names), [PLAIN]), names, strict=False):
            filled = {}  # prompts that fill the window, by distance
            for row in rows:
                if row["method"] != name or row["metric"] == "reach":
                    continue
                cell = {**about, "text": text, "method": label, "prompt": row.get("prompt", window)}
                cells.append({**cell, "distance": row["distance"], "score": row["score"]})
                if "prompt" not in row:
                    filled[row["distance"]] = row
            column = label if text == GENERATED else f"{label}, {text}"
            # The predictions are about reach as it was defined then: of any share of distances that pass.
            reach = recompute_reach(filled, THRESHOLD, 0.0)
            reaches[column] = math.nan if reach["reach"] is None else reach["reach"]
            reaches[f"{column} last"] = reach["last_distance"]
            reaches[f"{column} dips"] = sum(
                row["score"] < THRESHOLD and distance < (reach["reach"] or 0) for distance, row in filled.items()
            )
    counts = SavedCounts.read(place / "counts.npz")
    middle = nearest = window // 2
    if stage.startswith("S2"):
        middle, nearest = 120, 65  # its question is demand beyond 64 tokens at a window of 192
    f_at_reach = np.interp(reaches[PLAIN], np.arange(len(counts.f)), counts.f)  # not a number without a reach
    demand = {"f": int(counts.f[middle]), "g": counts.g_from(nearest), "f at reach": f_at_reach}
    runs.append({**about, "tokens": config["train"]["tokens"], **reaches, **demand})


def has_acquired(place: Path) -> bool:
    """Return whether a run has acquired retrieval."""
    cells = collect([place]).cells
    is_full = (cells["method"] == PLAIN) & (cells["prompt"] == cells["window"])
    return bool(cells[is_full]["score"].mean() >= ACQUIRED)


def accuracy(
    records: Records,
    stage: str,
    branch: str,
    low: int,
    high: int,
    method: str = PLAIN,
    prompt: int | None = None,
    text: str = GENERATED,
) -> "pd.Series[float]":
    """Average the accuracy of each seed over the distances of a band, in prompts of the window or shorter."""
    cells = records.cells
    # Cells of a shorter prompt are told from those of a full one by its length.
    length = cells["window"] if prompt is None else prompt
    chosen = (cells["stage"] == stage) & (cells["branch"] == branch) & (cells["method"] == method)
    chosen &= (
        (cells["text"] == text) & (cells["prompt"] == length) & (cells["distance"] >= low) & (cells["distance"] <= high)
    )
    return cells[chosen].groupby("seed")["score"].mean()


def pack(runs: Iterable[Path], table: Path) -> None:
    """Write to a table, as lab.analysis.table reads it, what commands read of run folders."""
    text = ""
    for run in sorted(runs):
        stages = [stage for name, stage in STAGES.items() if run.name.split("-")[0] in (name, stage.bases)]
        if any(stage.needs_retrieval for stage in stages):
            # A base and its continuations until it retrieves are replicates.
            plan = {"file": "plan.json", "text": '{"replicate": ["start.path"]}\n'}
            text += json.dumps({"run": run.name, **plan}, separators=(",", ":")) + "\n"
        for record in read_files(run):
            text += json.dumps({"run": run.name, **record}, separators=(",", ":")) + "\n"
    write_atomic(table, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def read_files(run: Path) -> Iterator[dict[str, Any]]:
    """Go through a run folder's files, without those of single tests."""
    for pattern in FILES:
        for path in sorted(run.glob(pattern)):
            file = path.relative_to(run).as_posix()
            if path.suffix == ".npz":
                with np.load(path) as saved:
                    arrays = {name: saved[name].tolist() for name in saved if name not in UNREAD}
                if FIRST_ALONE in arrays:
                    del arrays[FIRST_ALONE][1:]
                yield {"file": file, "arrays": arrays}
            elif path.suffix != ".jsonl":
                yield {"file": file, "text": path.read_text("utf-8")}
            elif not path.name.startswith("tests-"):
                for row in map(json.loads, path.read_text("utf-8").splitlines()):
                    if "test" not in row:
                        yield {"file": file, "row": row}
