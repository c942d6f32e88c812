"""The points that the law is fitted to: the paper's own, or those of finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eval.plan.documents import Documents
from eval.plan.law import Point
from lab.config import load_experiment
from lab.counts import SavedCounts
from lab.errors import ConfigError
from lab.train.folder import RunFolder

PUBLISHED = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True)
class Evidence:
    """Points of models of one size, and what the law leaves out; `parameters` counts the model's."""

    source: str
    parameters: float
    points: tuple[Point, ...]
    left_out: tuple[str, ...] = ()


def published(documents: Documents) -> Evidence:
    """Read the paper's points; f where only tokens are known is that of the documents, as they are."""
    record = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    points = []
    for row in record["points"]:
        reach, tokens = row["reach"], row.get("tokens")
        per_token = documents.frequency(row["window"], "natural")
        f = row["f"] if tokens is None else tokens * float(per_token[reach])
        what = "f as published" if tokens is None else f"{tokens / 1e9:,.0f}B tokens"
        known = () if tokens is None else (tokens, per_token)
        points.append(Point(f"window {row['window']:,}, {what}, finding {row['finding']}", reach, f, *known))
    return Evidence(record["source"], float(record["parameters"]), tuple(points))


def measured(runs: Sequence[Path], measure: str) -> list[Evidence]:
    """Read the last probe of each run; models of another size are evidence of their own.

    Raises: ConfigError for a folder that is not a run's, or where no run has a point.
    """
    sizes: dict[int, list[tuple[str, Point | None, str]]] = {}
    for run in runs:
        if not (run / "config.yaml").exists():
            raise ConfigError(f"{run}: must be a run folder, with a config.yaml; name run folders")
        experiment = load_experiment(run / "config.yaml")
        size = experiment.model.n_parameters()
        last = max(RunFolder(run).probes(), key=lambda record: record["consumed_tokens"], default={})
        point, fault = point_of(last, measure, run, experiment.data.window)
        sizes.setdefault(size, []).append((run.name, point, fault))
    out = []
    for size, found in sorted(sizes.items()):
        points = tuple(point for _, point, _ in found if point is not None)
        left_out = tuple(f"{run}: {fault}" for run, _, fault in found if fault)
        if all(point.open for point in points):
            raise ConfigError(f"RUNS: no point of a model of {size:,} parameters ({'; '.join(left_out)}); name others")
        out.append(Evidence(f"{len(found)} runs", size, points, left_out))
    return out


def point_of(record: dict[str, Any], measure: str, run: Path, window: int) -> tuple[Point | None, str]:
    """Turn a probe's summary into a point, and return why it is none, or not one to fit the law to."""
    reach, f = record.get(measure), record.get(f"f_at_{measure}")
    high = record.get("reach_high" if measure == "reach" else "high")
    if not record:
        return None, "no probe"
    if reach is None:
        return None, f"{measure} is below the shortest that was tested, or was not probed"
    if not f:
        return None, f"nothing was counted at {reach:g} tokens"
    counted = SavedCounts.read(run / "counts.npz").frequency()
    known = (record["consumed_tokens"], counted / counted[0], high is None)
    fault = f"{measure} {reach:g} may lie beyond the longest that was tested" if high is None else ""
    return Point(f"window {window:,}", float(reach), float(f), *known), fault
