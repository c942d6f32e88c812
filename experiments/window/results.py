"""The results of docs/findings.md from the records: conditions, verdicts on the predictions, and pictures."""

from pathlib import Path

import pandas as pd

from eval.engine.rows import to_text
from experiments.tables import write_reach, write_tables
from experiments.window.figures import plot_findings, plot_grid
from experiments.window.records import BAND, METHODS, Records, accuracy
from experiments.window.verdicts import verdict_rows
from lab.core.rows import Row


def condition_tables(records: Records) -> tuple[list[Row], list[Row]]:
    """Return two tables with a row for each condition: accuracy by method with f and demand, and reach by method."""
    accuracies: list[Row] = []
    reaches: list[Row] = []
    for (stage, branch), mine in records.runs.groupby(["stage", "branch"], sort=False):
        condition: Row = {"condition": f"{stage} {branch}", "n": len(mine)}
        if stage.startswith("S2"):
            low, high = BAND
            methods = METHODS[:1]
        else:
            window = int(mine["window"].iloc[0])
            low, high = window // 2, window
            methods = METHODS
        means: Row = {"f": round(mine["f"].mean()), "g": round(mine["g"].mean()), "distances": f"{low} to {high}"}
        ranges: Row = {}
        for method in methods:
            means[method] = f"{accuracy(records, stage, branch, low, high, method).mean():.2f}"
            ranges[method] = write_range(mine[method], mine[f"{method} last"])
        accuracies.append(condition | means)
        if stage.startswith("S2") or not branch.startswith("base"):  # bases of W are continued until they retrieve
            reaches.append(condition | ranges)
    return accuracies, reaches


def write_range(reaches: "pd.Series[float]", last: "pd.Series[float]") -> str:
    """Write the median reach of seeds, the least and the most; none counts as the least."""
    ordered = sorted(zip(reaches.fillna(0.0), last, strict=True))
    words = [write_reach(reach or None, end) for reach, end in ordered]
    return f"{words[(len(words) - 1) // 2]} ({words[0]} to {words[-1]})"


def describe(records: Records, out: Path | None = None) -> None:
    """Print the conditions and the verdicts; into a folder, plot them and write them into its findings.md."""
    accuracies, reaches = condition_tables(records)
    parts = [f"Mean accuracy\n{to_text(accuracies)}", f"Reach, median (least to most)\n{to_text(reaches)}"]
    if verdicts := list(verdict_rows(records)):
        forms = {name: ".3f" for name in verdicts[0] if name not in ("prediction", "n", "verdict")}
        parts.append(to_text(verdicts, forms))
    write_tables("\n\n".join(parts), out and out / "findings.md", "## Results")
    if out is not None:
        plot_findings(records, out / "findings.png")
        if (records.runs["stage"] == "W_1M").any():
            plot_grid(records, out / "prompts.png")
