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
from lab.draw import Rule, draw, save

STEP = re.compile(r"(?:step|ckpt|checkpoint|iter)[-_=]*([0-9]+)(k?)", re.I)
FORMS = {"distance": ",", "found": ",", "tests": ",", "share": ".3f", "log p": ".2f", "f": ",.0f"}


def asked(options: Any) -> Row:
    """Return the options that decide what is found."""
    decided = asdict(options) | {"device": "auto", "batch": None}
    return {name: value for name, value in decided.items() if name != "tokens_per_step"}


def step_of(name: str) -> int | None:
    """Read the step in a checkpoint's name: the number after step, ckpt, checkpoint or iter.

    Example:
        >>> [step_of(name) for name in ("stage1-step140000-tokens294B", "step-480k-token-1.0T", "ckpt_356", "main")]
        [140000, 480000, 356, None]
    """
    found = STEP.search(name)
    return None if found is None else int(found[1]) * (1000 if found[2] else 1)


def over_models(request: Request, found: Sequence[Found]) -> Found:
    """Show the reach of several models together.

    Raises: LabError.
    """
    names, per_step = names_of(request.places), request.options.tokens_per_step
    rows: list[Row] = []
    for name, one in zip(names, found, strict=True):
        for row in (row for row in one.rows if row["metric"] == "reach"):
            step = None if row["consumed_tokens"] is not None else step_of(name)
            tokens = step * per_step if step is not None and per_step else row["consumed_tokens"]
            rows.append({**row, "model": name, "step": step, "tokens": tokens})
    digest = shortened(json.dumps([names, asked(request.options), request.distances, request.overrides]))
    path = (request.folder or Path("runs")) / f"reach-{digest}.jsonl"
    write_rows(path, rows)
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
        about = {name: row[name] for name in ("model", *known, "method")}
        lines.append({**about, "reach": reach.removesuffix(","), "limits": f"{low} to {high}", "f": row["f_at_reach"]})
    return to_text(lines, {"step": ",.0f", "tokens": ",.0f", "f": ",.0f"})


def chart(rows: Sequence[Row]) -> Any:
    """Draw reach with its limits, a line for each method; one below the first distance is drawn at that distance."""
    names, end = {row["model"] for row in rows}, max(row["last_distance"] for row in rows)
    by = next((key for key in ("tokens", "step") if len({row[key] for row in rows} - {None}) == len(names)), "model")
    shown = []
    for row in rows:
        high = row["last_distance"] if row["reach_high"] is None else row["reach_high"]
        shown.append({**row, "shown": row["reach"] or row["first_distance"], "from": row["reach_low"] or 0, "to": high})
    return draw(
        shown,
        by,
        "shown",
        "method",
        low="from",
        high="to",
        rules=[Rule("y", end, f"the end of what was tested, {end:,}")],
        title=f"reach at threshold {rows[0]['threshold']:g}",
        y_title="reach (tokens)",
    )


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
    if "needles_by_distance" in by:
        four = (f"{row['distance']:,}: {row['score']:.2f} of {row['n']}" for row in by["needles_by_distance"])
        lines.append(f"four-needle tests of training, at the nearest distance: {', '.join(four)}")
    lines.append(reach_line(reach))
    if "found_by_prompt" in by:
        cells = [*({**row, "context": "the window"} for row in whole), *by["found_by_prompt"]]
        grid = pivot(cells, "distance", "context")
        table = to_text(grid[[*grid.columns[1:], "the window"]], ".3f")
        lines += ["share found in prompts that take with the answer, in tokens:", table]
    return lines
