"""Reach over several models in one table and one picture: the revisions of a model of the hub, folders, checkpoints.

What was found of each has its own file. A model's tokens are those of its checkpoint, or --tokens_per_step times the
step in its name. Reach is drawn against tokens, against steps where tokens are not known, else model by model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eval.distance.table import reach_line, reach_words
from eval.engine.command import Request
from eval.engine.places import names_of
from eval.engine.rows import Found, Row, shortened, write_rows
from eval.engine.table import to_text
from lab.plots import GREY, canvas, count_axis, line_look
from lab.source.hub import is_hub_id
from lab.train.folder import RunFolder

STEP = re.compile(r"([0-9]+)(k|m)?(?![0-9a-z])", re.I)
NAMED = re.compile(r"(?:step|ckpt|checkpoint|iter)[-_=]*([0-9]+)(k|m)?", re.I)
SIZES = {"": 1, "k": 1_000, "m": 1_000_000}
WIDE = 50  # last x over the first from which on the axis is logarithmic


def asked(options: Any) -> Row:
    """Return the options that decide what is found."""
    decided = asdict(options) | {"device": "auto", "batch": None}
    return {name: value for name, value in decided.items() if name != "tokens_per_step"}


def path_on_hub(request: Request, folder: Path | None) -> Path | None:
    """Name the results of a model of the hub by what was asked for, so that they are known without the model.

    A file that numbers are hidden in counts by its size and time.
    """
    if folder is None or not is_hub_id(request.model):
        return None
    text = Path(request.options.haystack or "")
    stat = text.stat() if text.is_file() else None
    own: list[Any] = [str(request.model), asked(request.options), request.distances, request.overrides]
    own += [] if stat is None else [stat.st_size, stat.st_mtime_ns]
    return folder / f"distance-{shortened(json.dumps(own))}.jsonl"


def recorded(request: Request) -> Found | None:
    """Return what an earlier call wrote of a model of the hub to FOLDER, with its picture if one is wanted."""
    path = path_on_hub(request, request.folder)
    picture = path.with_suffix(".png") if path is not None and request.plots else None
    if path is None or not path.is_file() or (picture is not None and not picture.is_file()):
        return None
    rows = list(RunFolder(path.parent).read(path.name))
    lines = [f"{row['method']}: {reach_line(row)}" for row in rows if row["metric"] == "reach"]
    return Found("\n".join([f"{request.model}: measured earlier", *lines, ""]), rows, path, picture)


def step_of(name: str) -> int | None:
    """Read the step in a checkpoint's name: the number after step, ckpt, checkpoint or iter, else the last one.

    Example:
        >>> [step_of(name) for name in ("stage1-step140000-tokens294B", "step-480k-token-1.0T", "ckpt_356", "main")]
        [140000, 480000, 356, None]
    """
    name = name.rpartition("@")[2]
    found = NAMED.search(name) or next(iter([*STEP.finditer(name)][-1:]), None)
    return None if found is None else int(found[1]) * SIZES[(found[2] or "").lower()]


def rows_of(names: Sequence[str], found: Sequence[Found], tokens_per_step: float | None) -> list[Row]:
    """Collect a row for each model and method, with its step and its tokens where they are known."""
    rows = []
    for name, one in zip(names, found, strict=True):
        for row in (row for row in one.rows if row["metric"] == "reach"):
            step = None if row["consumed_tokens"] is not None else step_of(name)
            tokens = step * tokens_per_step if step is not None and tokens_per_step else row["consumed_tokens"]
            rows.append({**row, "model": name, "step": step, "tokens": tokens})
    return rows


def over_models(request: Request, found: Sequence[Found]) -> Found:
    """Show the reach of several models together.

    Raises: LabError.
    """
    names = names_of(request.places)
    rows = rows_of(names, found, request.options.tokens_per_step)
    folder = Path("runs") if request.named.o is None else Path(request.named.o)
    digest = shortened(json.dumps([names, asked(request.options), request.distances, request.overrides]))
    path = folder / f"reach-{digest}.jsonl"
    write_rows(path, rows, f"-o {folder}", "folder")
    picture = path.with_suffix(".png") if request.plots else None
    if picture is not None:
        draw(rows, picture)
    first = rows[0]
    title = f"reach at threshold {first['threshold']:g}, {first['confidence']:.6g} limits; {first['n']} tests each"
    return Found(f"{title}\n{table(rows)}\n", (), path, picture)


def table(rows: Sequence[Row]) -> str:
    """Lay out reach by model and method; columns of which nothing is known are left out."""
    known = [name for name in ("step", "tokens") if any(row[name] is not None for row in rows)]
    lines = []
    for row in rows:
        reach, low, high = reach_words(row)
        about = {"model": row["model"], **{name: row[name] for name in known}, "method": row["method"]}
        lines.append({**about, "reach": reach.removesuffix(","), "limits": f"{low} to {high}", "f": row["f_at_reach"]})
    return to_text(lines, {"step": ",.0f", "tokens": ",.0f", "f": ",.0f"})


def draw(rows: Sequence[Row], output: Path) -> None:
    """Draw reach with its limits, a line for each method; triangles are that far or farther, or less.

    Raises: MissingPackage without matplotlib, ConfigError where the picture cannot be written.
    """
    names = [*dict.fromkeys(row["model"] for row in rows)]
    by = next((key for key in ("tokens", "step") if len({row[key] for row in rows} - {None}) == len(names)), "model")
    methods = [*dict.fromkeys(row["method"] for row in rows)]
    with canvas(output, 6.5, 4.2) as figure:
        axes = figure.subplots()
        for number, method in enumerate(methods):
            own = [row for row in rows if row["method"] == method]
            own = own if by == "model" else sorted(own, key=lambda row: row[by])
            x = [names.index(row["model"]) if by == "model" else row[by] for row in own]
            draw_method(axes, x, own, line_look(number, len(methods)), method)
        end = max(row["last_distance"] for row in rows)
        axes.axhline(end, color=GREY, linestyle=":", linewidth=1, zorder=0)
        axes.set(ylim=(0, 1.08 * end), ylabel="reach (tokens)", xlabel={"tokens": "training tokens"}.get(by, by))
        if by == "model":
            axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        elif min(row[by] for row in rows) * WIDE > max(row[by] for row in rows):
            count_axis(axes.xaxis)
        else:
            axes.set_xscale("log" if all(row[by] for row in rows) else "symlog")
        axes.annotate(f"the end of what was tested, {end:,}", (0.01, end), xycoords=("axes fraction", "data"),
                      xytext=(0, 2), textcoords="offset points", color=GREY, fontsize=7)  # fmt: skip
        figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=2)


def draw_method(axes: Any, x: Sequence[float], rows: Sequence[Row], look: dict[str, Any], method: str) -> None:
    """Draw one method: reach, limits up to the end of what was tested, and open triangles where reach is a bound."""
    y = [row["first_distance"] if row["reach"] is None else row["reach"] for row in rows]
    low = [0 if row["reach_low"] is None else row["reach_low"] for row in rows]
    high = [row["last_distance"] if row["reach_high"] is None else row["reach_high"] for row in rows]
    axes.plot(x, y, label=method, **look)
    axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    for place, reach, row in zip(x, y, rows, strict=True):
        marker = "v" if row["reach"] is None else "^" if row["reach"] == row["last_distance"] else "o"
        fill = look["color"] if marker == "o" else "white"
        axes.plot(place, reach, marker, color=look["color"], markerfacecolor=fill, markersize=6)
