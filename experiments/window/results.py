"""The results of docs/findings.md from the records: conditions, verdicts on the predictions, and pictures."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from eval.engine.rows import to_text
from experiments.tables import write_reach, write_tables
from experiments.window.figures import plot_findings, plot_grid
from experiments.window.records import BAND, METHODS, Records, accuracy
from experiments.window.verdicts import verdict_rows
from lab.rows import Row


def condition_rows(records: Records) -> Iterator[Row]:
    """Describe each condition: seeds, far or band accuracy, the reach of each seed by method, f and demand."""
    for (stage, branch), mine in records.runs.groupby(["stage", "branch"], sort=False):
        row: Row = {"stage": stage, "branch": branch, "n": len(mine)}
        if stage.startswith("S2"):
            low, high = BAND
            methods = METHODS[:1]
        else:
            window = int(mine["window"].iloc[0])
            low, high = window // 2, window
            methods = METHODS
            row["acquired"] = int(mine["acquired"].sum())
        row["accuracy"] = f"{low} to {high}"
        for method in methods:
            row[method] = f"{accuracy(records, stage, branch, low, high, method).mean():.2f}"
            reaches = [write_reach(*pair) for pair in zip(mine[method], mine[f"{method} last"], strict=True)]
            row[f"reach, {method}"] = " ".join(reaches)
        yield row | {"f": round(mine["f"].mean()), "g": round(mine["g"].mean())}


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
    write_tables("\n\n".join(parts), out and out / "findings.md", "## Results")
    if out is not None:
        plot_findings(records, out / "findings.png")
        if (records.runs["stage"] == "W_1M").any():
            plot_grid(records, out / "prompts.png")
