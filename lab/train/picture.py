"""One picture of a run: position frequency, loss, and accuracy by length during training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lab.counts import SavedCounts
from lab.draw import ORANGE, Rule, beside, draw, layer, save
from lab.errors import CheckpointError
from lab.train.folder import Record, RunFolder

if TYPE_CHECKING:
    import pandas as pd

POINTS = 1000  # of a curve at most
THIS, FULL = "this run", "windows always full"
SIZE: dict[str, Any] = {"width": 360, "height": 260}


def draw_run(run: Path, output: Path | None = None) -> Path:
    """Draw a run folder's picture and return its path.

    Raises: MissingPackage without Altair, CheckpointError for a folder without counts.npz.
    """
    folder, output = RunFolder(run), output or run / "picture.png"
    if not (run / "counts.npz").exists():
        raise CheckpointError(f"{run}: holds no counts.npz; use the folder of a run that has saved a checkpoint")
    probes = list(folder.records("probes.jsonl"))
    charts = [
        draw_frequency(SavedCounts.read(run / "counts.npz")),
        draw_loss(list(folder.records("metrics.jsonl")), probes),
        draw_accuracy(probes),
    ]
    save(beside(*charts, title=run.name), output)
    return output


def draw_frequency(counts: SavedCounts) -> Any:
    """Draw f(i), and, but for ids with gaps, what full windows would have given at the same number of tokens."""
    window = len(counts.f)
    positions = np.unique(np.linspace(0, window - 1, POINTS).round().astype(int))
    rows = [{"i": int(i), "f": int(counts.f[i]), "pairs": THIS} for i in positions]
    has_gaps = counts.tokens != counts.lengths @ np.arange(len(counts.lengths))
    if not has_gaps:
        rows += [{"i": int(i), "f": counts.tokens * (1 - i / window), "pairs": FULL} for i in positions]
    far = counts.f[-(-3 * window // 4) :].sum() / max(counts.f.sum(), 1)
    title = f"position frequency; {far:.1%} of it in the last quarter of the {'target ' * bool(has_gaps)}window"
    names: dict[str, Any] = {"x_title": "relative position i (tokens)", "y_title": "f(i)", "title": title}
    return draw(rows, "i", "f", "pairs", marks=False, **names, **SIZE)


def draw_loss(metrics: list[Record], probes: list[Record]) -> Any:
    """Draw training and held-out loss over consumed tokens."""
    names: dict[str, Any] = {
        "x_title": "consumed tokens",
        "y_title": "nats per token",
        "title": "loss; points are held out",
    }
    training = draw(table(metrics, "consumed_tokens", "loss"), "consumed_tokens", "loss", marks=False, **names, **SIZE)
    held_out = table(probes, "consumed_tokens", "held_out_loss").dropna()
    if held_out.empty:
        return training
    return layer(training, draw(held_out, "consumed_tokens", "held_out_loss", color=ORANGE, **names, **SIZE))


def draw_accuracy(probes: list[Record]) -> Any:
    """Draw accuracy by length, one line per probe, from light to dark as tokens are consumed."""
    rows = table(probes, "consumed_tokens", "length", "accuracy").dropna(subset="length")
    threshold = next((record["threshold"] for record in probes if record.get("threshold") is not None), None)
    rules = [] if threshold is None else [Rule("y", threshold, f"threshold {threshold:g}")]
    title = "four-needle accuracy" if len(rows) else "four-needle accuracy: no probe yet"
    names: dict[str, Any] = {"x_title": "length (tokens)", "y_title": "share of tests passed", "title": title}
    return draw(rows, "length", "accuracy", "consumed_tokens", y_limits=(0, 1), rules=rules, **names, **SIZE)


def table(records: list[Record], *columns: str) -> pd.DataFrame:
    """Lay out columns of records; what is no number is a gap."""
    import pandas as pd

    return pd.DataFrame(records).reindex(columns=list(columns)).apply(pd.to_numeric, errors="coerce")
