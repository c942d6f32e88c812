"""The tables of eval.distance, and reach over several models: revisions of a model of the hub, folders, checkpoints.

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

from eval.engine.command import Request
from eval.engine.methods import names_of
from eval.engine.rows import Found, Row, limits, pivot, shortened, to_text, write_rows
from lab.draw import Rule, draw, layer, save
from lab.source import is_hub_id
from lab.train.folder import RunFolder

STEP = re.compile(r"([0-9]+)(k|m)?(?![0-9a-z])", re.I)
NAMED = re.compile(r"(?:step|ckpt|checkpoint|iter)[-_=]*([0-9]+)(k|m)?", re.I)
SIZES = {"": 1, "k": 1_000, "m": 1_000_000}
FORMS = {"distance": ",", "found": ",", "tests": ",", "share": ".3f", "log p": ".2f", "f": ",.0f"}
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
    folder = request.folder or Path("runs")
    digest = shortened(json.dumps([names, asked(request.options), request.distances, request.overrides]))
    path = folder / f"reach-{digest}.jsonl"
    write_rows(path, rows, f"-o {folder}", "folder")
    picture = path.with_suffix(".png") if request.plots else None
    if picture is not None:
        save(chart(rows), picture)
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


def chart(rows: Sequence[Row]) -> Any:
    """Draw reach with its limits, a line for each method; marks tell where it is a bound."""
    names = [*dict.fromkeys(row["model"] for row in rows)]
    by = next((key for key in ("tokens", "step") if len({row[key] for row in rows} - {None}) == len(names)), "number")
    shown = []
    for row in sorted(rows, key=lambda row: (row.get(by), names.index(row["model"]))):
        first, last, reach, high = (row[key] for key in ("first_distance", "last_distance", "reach", "reach_high"))
        ends = {"from": row["reach_low"] or 0, "to": last if high is None else high}
        bound = "less far" if reach is None else "as far or farther" if reach == last else None
        number = names.index(row["model"]) + 1
        shown.append({**row, **ends, "number": number, "shown": reach or first, "bound": bound})
    end, places = max(row["last_distance"] for row in rows), [row[by] for row in shown]
    log = by != "number" and 0 < min(places) * WIDE <= max(places)
    x_title = {"tokens": "training tokens", "number": ", ".join(f"{n}: {name}" for n, name in enumerate(names, 1))}
    style: dict[str, Any] = {"log_x": log, "y_limits": (0, 1.08 * end)}
    rules = [Rule("y", end, f"the end of what was tested, {end:,}")]
    title = f"reach at threshold {rows[0]['threshold']:g}: {', '.join(dict.fromkeys(row['method'] for row in rows))}"
    style |= {"x_title": x_title.get(by, by), "y_title": "reach (tokens)"}
    lines = draw(shown, by, "shown", "method", low="from", high="to", rules=rules, title=title, **style)
    bounds = [row for row in shown if row["bound"]]
    return layer(lines, draw(bounds, by, "shown", "bound", kind="point", **style)) if bounds else lines


def reach_line(row: Row) -> str:
    """Write reach with its limits and f.

    Example:
        >>> row = {"threshold": 0.8, "first_distance": 20, "last_distance": 168, "f_at_reach": 21000}
        >>> reach_line({**row, "reach": 128.9, "reach_low": 120.0, "reach_high": 133.5})
        'reach 128.9 at threshold 0.8, within 120.0 to 133.5; f 21,000'
        >>> reach_line({**row, "reach": 168.0, "reach_low": None, "reach_high": None})
        'reach 168, the end, at threshold 0.8, within <20 to the end; f 21,000'
        >>> reach_line({**row, "reach": None, "reach_low": None, "reach_high": 64.0, "f_at_reach": None})
        'reach <20 at threshold 0.8, within <20 to 64.0; f -'
    """
    reach, low, high = reach_words(row)
    f = "-" if row["f_at_reach"] is None else f"{row['f_at_reach']:,}"
    return f"reach {reach} at threshold {row['threshold']:g}, within {low} to {high}; f {f}"


def reach_words(row: Row) -> tuple[str, str, str]:
    """Write reach and its limits."""
    below = f"<{row['first_distance']:,}"
    reach = below if row["reach"] is None else f"{row['reach']:,.1f}"
    if row["reach"] == row["last_distance"]:
        reach = f"{row['last_distance']:,}, the end,"
    low = below if row["reach_low"] is None else f"{row['reach_low']:,.1f}"
    return reach, low, "the end" if row["reach_high"] is None else f"{row['reach_high']:,.1f}"


def note(row: Row) -> str:
    """Name the tests of a row that are not those of the window."""
    return "four needles (training)" if row["metric"] == "needles_by_distance" else f"in {row['context']:,} tokens"


def method_lines(rows: Sequence[Row]) -> list[str]:
    """Write one method's share found by distance, its reach, and what was found by other tests."""
    by = {name: [row for row in rows if row["metric"] == name] for name in {row["metric"] for row in rows}}
    whole, reach = by["found_by_distance"], by["reach"][0]
    shown = [
        {
            "distance": row["distance"],
            "found": row["found"],
            "tests": row["n"],
            "share": row["score"],
            f"{reach['confidence']:.6g} limits": limits(row, ".3f"),
            "log p": row["log_prob"],
            "f": row["f"],
        }
        for row in whole
    ]
    lines = [to_text(shown, FORMS)]
    four = by.get("needles_by_distance", [])
    if four:
        shares = ", ".join(f"{row['distance']:,}: {row['score']:.2f} of {row['n']}" for row in four)
        lines.append(f"four-needle tests of training, at the nearest distance: {shares}")
    lines.append(reach_line(reach))
    if "found_by_prompt" in by:
        grid = pivot(
            [*({**row, "context": "the window"} for row in whole), *by["found_by_prompt"]], "distance", "context"
        )
        table = to_text(grid[[*grid.columns[1:], "the window"]], ".3f")
        lines += ["share found in prompts that take with the answer, in tokens:", table]
    return lines
