"""One picture of several runs: position frequency, loss, reach of retrieval, and the last probe, a curve for each arm.

Runs that differ only in their seed are one curve, their mean, with a band of its 95% limits (lab/train/arms.py). The
k-th probes of such runs, whose tokens differ by less than a batch, are one point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from lab.counts import SavedCounts
from lab.errors import CheckpointError
from lab.plots import GREY, PALETTE, canvas, count_axis, line_look
from lab.train.arms import ONLY, mean_with_limits, name_arms, read_settings
from lab.train.folder import Record, RunFolder

COLOURS = (*PALETTE, "#222222")
MARKERS = "osD^vP*"
MOST_NAMED = 28  # arms that a legend names, all combinations of 7 colours and 4 styles
ROOM = 160  # characters beside one another in a legend, of which a line takes about 10

Points = list[tuple[float, float]]
Probes = list[Record]


def draw_arms(runs: Sequence[Path], output: Path) -> Path:
    """Draw run folders and return the picture's path.

    Raises: MissingPackage without matplotlib, CheckpointError for a folder that is not a run's.
    """
    missing = next((run for run in runs if not (run / "counts.npz").exists()), None)
    if missing is not None:
        raise CheckpointError(f"{missing}: holds no counts.npz; use folders of runs that have saved a checkpoint")
    settings = {str(run): read_settings(run) for run in runs}
    arms: dict[str, list[Path]] = {}
    for run, arm in name_arms(settings).items():
        arms.setdefault(arm, []).append(Path(run))
    with canvas(output, 11, 7.6) as figure:
        panels = figure.subplots(2, 2).ravel()
        for number, (arm, members) in enumerate(arms.items()):
            name = members[0].name if len(members) == 1 else "" if arm == ONLY else arm
            seeds = f"{len(members)} seeds" if len(members) > 1 else ""
            label = ", ".join(filter(None, (name, seeds))) if number < MOST_NAMED else None
            draw_arm(panels, members, (number, len(arms)), label)
        probed = any(has_distances(list(RunFolder(run).read("probes.jsonl"))) for run in runs)
        finish(panels, list(settings.values()), by_distance=probed)
        lines, names = panels[0].get_legend_handles_labels()
        columns = min(3, max(1, ROOM // (10 + max(map(len, names), default=0))))
        figure.legend(lines, names, loc="outside lower center", ncols=columns, frameon=False)
    return output


def draw_arm(panels: Sequence[Any], runs: Sequence[Path], place: tuple[int, int], label: str | None) -> None:
    """Draw the curves of one arm; `place` is its number, and of how many."""
    look = line_look(*place, COLOURS)
    size = 2 + 2 * look["linewidth"]  # as of lines, a later mark leaves the edges of one that it lies on
    marked = look | {"marker": MARKERS[place[0] % len(MARKERS)], "markersize": size}
    probes = [list(RunFolder(run).read("probes.jsonl")) for run in runs]
    draw(panels[0], [list(enumerate(SavedCounts.read(run / "counts.npz").f)) for run in runs], look | {"label": label})
    measures = (held_out_loss, reach, accuracy)
    for axes, measure in zip(panels[1:], measures, strict=True):
        draw(axes, [measure(each) for each in probes], marked)


def draw(axes: Any, seeds: Iterable[Points], look: dict[str, Any]) -> None:
    """Draw the mean over seeds at each of their points, with its band."""
    points = [[point for point in column if point is not None] for column in zip_longest(*seeds)]
    if not points:
        return
    x = [np.mean([at for at, _ in column]) for column in points]
    mean, low, high = zip(*(mean_with_limits([float(y) for _, y in column]) for column in points), strict=True)
    axes.plot(x, mean, clip_on=False, **look)
    if len(points) == 1:  # a band of no width
        axes.vlines(x, low, high, color=look["color"], linewidth=1)
    axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def held_out_loss(probes: Probes) -> Points:
    """List the held-out loss of each probe."""
    return [(p["consumed_tokens"], p["held_out_loss"]) for p in probes if "held_out_loss" in p]


def reach(probes: Probes) -> Points:
    """List the reach of each probe, of older ones the smooth effective length; 0 where the first value failed."""
    name = "reach" if has_distances(probes) else "smooth"
    return [(p["consumed_tokens"], p[name] or 0) for p in probes if name in p and "effective_length" in p]


def accuracy(probes: Probes) -> Points:
    """List the share found at each distance in the last probe, of older ones the share passed at each length."""
    last = max((probe["consumed_tokens"] for probe in probes), default=0)
    by = "distance" if has_distances(probes) else "length"
    return sorted((p[by], p["score"]) for p in probes if p["consumed_tokens"] == last and by in p and "score" in p)


def has_distances(probes: Probes) -> bool:
    """Return whether numbers were searched for by distance, beside the tests by length."""
    return any("distance" in probe for probe in probes)


def finish(panels: Sequence[Any], settings: Sequence[dict[str, Any]], *, by_distance: bool) -> None:
    """Name the axes, and mark the window and the threshold that all runs share."""
    frequency, loss, reaches, shares = panels
    frequency.set(title="position frequency", xlabel="relative position i (tokens)", ylabel="f(i)")
    frequency.set_yscale("log", nonpositive="mask")
    loss.set(title="held-out loss", xlabel="consumed tokens", ylabel="nats per token")
    title, what = ("reach", "distance") if by_distance else ("effective length, smooth", "length")
    reaches.set(title=title, xlabel="consumed tokens", ylabel="tokens")
    shares.set(title=f"last probe, by {what}", xlabel=f"{what} (tokens)", ylabel="share passed", ylim=(-0.02, 1.04))
    for axes in (loss, reaches):
        count_axis(axes.xaxis)
    windows = [each.get("data.window") or 0 for each in settings]
    reaches.set_ylim(0, 1.05 * max(*windows, reaches.get_ylim()[1]))
    shares.set_xlim(0, None)
    mark(settings, "data.window", reaches)
    mark(settings, "probe.threshold", shares)


def mark(settings: Sequence[dict[str, Any]], key: str, axes: Any) -> None:
    """Draw a value that all runs have in common as a level line."""
    values = {each.get(key) for each in settings}
    if len(values) == 1 and None not in values:
        (value,) = values
        axes.axhline(value, color=GREY, linestyle=":", linewidth=1, zorder=0)
        name, place = key.rpartition(".")[2], axes.get_yaxis_transform()
        axes.text(1, value, f"{name} {value:g}", transform=place, ha="right", va="bottom", color=GREY)
