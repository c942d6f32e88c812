"""The tables of eval.distance, and reach over several models: revisions of a model of the hub, folders, checkpoints.

What was found of each has its own file. Reach is drawn against tokens where all are known, else model by model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eval.engine.command import Request
from eval.engine.methods import names_of
from eval.engine.rows import Found, Row, columns_text, limits, pivot, shortened, to_text, write_rows
from lab.draw import Rule, draw, save

TOGETHER = (
    ("model", "model", ""),
    ("tokens", "consumed_tokens", ",.0f"),
    ("method", "method", ""),
    ("reach", lambda row: reach_words(row)[0].removesuffix(","), ""),
    ("limits", lambda row: " to ".join(reach_words(row)[1:]), ""),
    ("f", "f_at_reach", ",.0f"),
)


def asked(options: Any) -> Row:
    """Return the options that decide what is found."""
    return {**asdict(options), "device": "auto", "batch": None}


def over_models(request: Request, found: Sequence[Found]) -> Found:
    """Show the reach of several models together.

    Raises: LabError.
    """
    names = names_of(request.places)
    named = [(name, row) for name, one in zip(names, found, strict=True) for row in one.rows]
    rows = [{**row, "model": name} for name, row in named if row["metric"] == "reach"]
    digest = shortened(json.dumps([names, asked(request.options), request.distances, request.overrides]))
    path = (request.folder or Path("runs")) / f"reach-{digest}.jsonl"
    write_rows(path, rows)
    picture = path.with_suffix(".png") if request.plots else None
    if picture is not None:
        save(chart(rows), picture)
    first = rows[0]
    title = f"reach at threshold {first['threshold']:g}, {first['confidence']:.6g} limits; {first['n']} tests each"
    return Found(f"{title}\n{columns_text(rows, TOGETHER)}\n", (), path, picture)


def chart(rows: Sequence[Row]) -> Any:
    """Draw reach with its limits, a line for each method; one below the first distance is drawn at that distance."""
    end = max(row["last_distance"] for row in rows)
    by = "model" if None in {row["consumed_tokens"] for row in rows} else "consumed_tokens"
    shown = []
    for row in rows:
        high = row["last_distance"] if row["reach_high"] is None else row["reach_high"]
        shown.append({**row, "shown": row["reach"] or row["first_distance"], "from": row["reach_low"] or 0, "to": high})
    rules = [Rule("y", end, f"the end of what was tested, {end:,}")]
    style: dict[str, Any] = {"title": f"reach at threshold {rows[0]['threshold']:g}", "y_title": "reach (tokens)"}
    return draw(shown, by, "shown", "method", low="from", high="to", rules=rules, **style)


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


def method_lines(rows: Sequence[Row]) -> list[str]:
    """Write one method's share found by distance, its reach, and what was found in shorter prompts."""
    *found, reach = rows
    whole = [row for row in found if row["metric"] == "found_by_distance"]
    columns = (
        ("distance", "distance", ","),
        ("found", "found", ","),
        ("tests", "n", ","),
        ("share", "score", ".3f"),
        (f"{reach['confidence']:.6g} limits", lambda row: limits(row, ".3f"), ""),
        ("log p", "log_prob", ".2f"),
        ("f", "f", ",.0f"),
    )
    lines = [columns_text(whole, columns), reach_line(reach)]
    if len(found) > len(whole):
        grid = pivot([{"context": "the window", **row} for row in found], "distance", "context")
        table = to_text(grid[[*grid.columns[1:], "the window"]], ".3f")
        lines += ["share found in prompts that take with the answer, in tokens:", table]
    return lines
