"""The results of docs/findings.md from the records: conditions, verdicts on the predictions, and pictures."""

from pathlib import Path

import pandas as pd

from eval.engine.rows import to_text
from experiments.tables import write_reach, write_tables
from experiments.window.figures import plot_findings, plot_grid
from experiments.window.records import BAND, METHODS, Records, accuracy
from experiments.window.verdicts import verdict_rows
from lab.core.types import Row


def condition_tables(records: Records) -> list[list[Row]]:
    """Return tables with a row for each condition: accuracy by method with f and demand, reach of S2, and that of W."""
    accuracies: list[Row] = []
    reach_of_s2: list[Row] = []
    reach_of_w: list[Row] = []
    for (stage, branch), mine in records.runs.groupby(["stage", "branch"], sort=False):
        condition: Row = {"condition": f"{stage} {branch}", "n": len(mine)}
        low, high = BAND
        methods = METHODS[:1]
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
    """Write the median reach of seeds, the least and the most; none counts as the least."""
    ordered = sorted(zip(reaches.fillna(0.0), last, strict=True))
    texts = [write_reach(reach or None, end) for reach, end in ordered]
    return f"{texts[(len(texts) - 1) // 2]} ({texts[0]} to {texts[-1]})"


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
    write_tables("\n\n".join(parts), out and out / "findings.md", "## Results")
    if out is not None:
        plot_findings(records, out / "findings.png")
        if (records.runs["stage"] == "W_1M").any():
            plot_grid(records, out / "prompts.png")
