"""The results of docs/demand.md from its records: the reach of each run by condition and position method."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

import lab
from eval.engine.rows import to_text
from experiments.tables import find_tables, read_tests, write_reach, write_tables
from lab.core.chart import layer, plot_rows, save
from lab.core.types import Row
from lab.probe.reach import ONE, recompute_reach
from lab.runs.arms import read_settings
from lab.runs.tables import unpacked

THRESHOLD = 0.8
N_SEEDS = 3
SWEEPS = ("windows", "lengths", "arms", "base")  # sweeps/NAME_mini.yaml, and the tables of their records
HEADING = "## The miniature"  # of the page
DOCUMENTS, SECTIONS = "data.corpus.log_std", "data.corpus.section_tokens"
NATURAL = {"data.window": 192, "data.mode": "natural", "model.theta": 1000, DOCUMENTS: 0.8, SECTIONS: 192}
CONDITIONS: dict[str, dict[str, Any]] = {  # by what differs from NATURAL
    "short documents, sections of 96": {DOCUMENTS: 0.5, SECTIONS: 96},
    "long documents, sections of 96": {SECTIONS: 96},
    "short documents, sections of 192": {DOCUMENTS: 0.5},
    "long documents, sections of 192": {},
    "window of 128": {"data.window": 128},
    "window of 256": {"data.window": 256},
    "documents cut to uniform lengths": {"data.mode": "uniform"},
    "documents joined": {"data.mode": "concatenated"},
    "rotary base of 250": {"model.theta": 250},
}
VARIED = [*CONDITIONS][:4]  # in the picture
SAMPLE = {192: VARIED[-1], 256: "window of 256"}  # recorded under all methods, by window
PROBED = ["consumed_tokens", "reach", "last_distance"]
PLAIN, STRING, DCA = "plain", "STRING", "DCA"


def methods_at(window: int) -> dict[str, str]:
    """Name the distance methods at a window as records do."""
    half, third = window // 2, window // 3
    shift, length = -(-window // 3), 2 * window // 3
    chunk = 3 * length // 4
    return {
        STRING: f"string(shift={shift},window={shift // 2})",
        DCA: f"dca(train_len={length},chunk={chunk},window={length - chunk})",
        "DCA, half": f"dca(train_len={half},chunk={3 * half // 4})",
        "ReRoPE": f"rerope(window={third})",
        "leaky ReRoPE": f"leaky_rerope(window={third},leak=2)",
        "Self-Extend": f"self_extend(group=2,window={window // 4})",
    }


def describe(records: Path, out: Path | None = None) -> None:
    """Print the tables of reach; into a folder, plot it and write them into its demand.md."""
    runs = read(find_tables(records, SWEEPS))
    text = f"{to_text(list(condition_rows(runs)))}\n\n{to_text(list(method_rows(runs)))}"
    write_tables(text, out and out / "demand.md", HEADING)
    if out is not None:
        plot(runs, out / "miniature.png")


def read(tables: Sequence[Path]) -> pd.DataFrame:
    """Read the reach of each run at each probe of training, and at its end under each method."""
    with unpacked(tables) as places:
        return pd.DataFrame(itertools.chain.from_iterable(map(read_run, places)))


def read_run(place: Path) -> Iterator[Row]:
    """Read the reaches of a run."""
    settings = read_settings(place)
    # Exactly one condition has the settings of a recorded run.
    (condition,) = (name for name, changed in CONDITIONS.items() if settings | NATURAL | changed == settings)
    run = lab.open_run(place)
    about = {"condition": condition, "seed": settings["run.seed"], "f": run.f()[settings["data.window"] // 2]}
    for probe in run.probes()[PROBED].to_dict("records"):
        yield {**about, "method": PLAIN, **probe}
    tests: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in read_tests(place):
        if row["metric"] == ONE:
            tests[row["method"].removeprefix("rope+")][row["distance"]] = row
    for method, by_distance in tests.items():
        yield {**about, "method": method, **recompute_reach(by_distance, THRESHOLD)}


def reaches(runs: pd.DataFrame, condition: str, method: str) -> str:
    """Write the reach of each seed of a condition at the end of training."""
    mine = runs[(runs["condition"] == condition) & (runs["method"] == method)]
    last = mine.groupby("seed").tail(1).sort_values("seed")
    return " ".join(write_reach(*pair) for pair in zip(last["reach"], last["last_distance"], strict=True)) or "-"


def condition_rows(runs: pd.DataFrame) -> Iterator[Row]:
    """Describe each condition: seeds, f at half of the window, when reach begins, and reach."""
    for condition, changed in CONDITIONS.items():
        mine = runs[(runs["condition"] == condition) & (runs["method"] == PLAIN)]
        if mine.empty:
            continue
        methods = methods_at((NATURAL | changed)["data.window"])
        last = mine.groupby("seed").tail(1)
        begins = mine.dropna(subset=["reach"]).groupby("seed")["consumed_tokens"].min().reindex(sorted(last["seed"]))
        row = {"condition": condition, "n": len(last), "f": round(last["f"].mean())}
        row["begins, M tokens"] = " ".join("-" if pd.isna(value) else f"{value / 1e6:.1f}" for value in begins)
        row["reach of each seed"] = reaches(runs, condition, PLAIN)
        for name in (STRING, DCA):
            row[f"under {name}"] = reaches(runs, condition, methods[name])
        yield row


def method_rows(runs: pd.DataFrame) -> Iterator[Row]:
    """Describe reach under each position method at the windows that were tested under all."""
    for name in ("unmodified", *methods_at(192)):
        row = {"method": name}
        for window, condition in SAMPLE.items():
            row[f"window of {window}"] = reaches(runs, condition, methods_at(window).get(name, PLAIN))
        yield row


def plot(runs: pd.DataFrame, path: Path) -> None:
    """Plot the reach of each run over tokens where documents and sections vary; the mean where all seeds have one."""
    mine = runs[(runs["method"] == PLAIN) & runs["condition"].isin(VARIED)].dropna(subset=["reach"])
    mine = mine.assign(tokens=(mine["consumed_tokens"] / 1e6).round(1))
    plot_reach = partial(plot_rows, x="tokens", y="reach", series="condition", names=VARIED)
    plot_reach = partial(plot_reach, x_title="consumed tokens (millions)", y_title="reach (tokens)")
    # A mean of the seeds that acquired retrieval would jump as late ones join.
    full = mine.groupby(["condition", "tokens"]).filter(lambda rows: len(rows) == N_SEEDS)
    means = full.groupby(["condition", "tokens"])["reach"].mean().reset_index()
    lines = plot_reach(means, title=f"Reach at a window of 192, n = {N_SEEDS}", marks=False)
    points = plot_reach(mine, kind="point", legend=False)
    save(layer(lines, points), path)
