"""Reads the rows of all evaluations into one data frame.

Every evaluation writes one JSON object a line, with names of its own. KINDS lists for each what its rows are called,
what their score is, and which fields two rows must agree in to be results of the same task. The summary of a probe
becomes a record for each of its numbers (SUMMARY). Rows of other kinds are counted.

A record of a run also has the settings of the run's config.yaml, by their dotted names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from lab.errors import DataError
from lab.train.arms import read_settings
from lab.train.folder import RunFolder

Row = dict[str, Any]
NEEDLES = ("needles", "digits", "required", "answer_budget", "haystack")
HARNESS = ("task_version", "definition", "metric", "filter", "fewshot", "limit", "max_gen_toks", "chat", "truncate")
COUNTED = ("passed", "found", "failures")  # what a share counts, by the first name that a row has
DEPTH_OF_CONFIG = 3  # folders from a file of results up to its run's config.yaml, as in RUN/eval/probe-X/


class Kind(NamedTuple):
    """How the rows of an evaluation are read: their task, as a template, and what they measure.

    `better` is 1 where higher scores are better, -1 where lower ones are, 0 where neither is.
    """

    evaluation: str
    task: str
    alike: tuple[str, ...]
    unit: str = "share"
    better: int = 1


KINDS = {  # by what kind_of returns
    "ruler": Kind("ruler", "{task}", ("version", "answer_budget", "source", "standins"), "percent"),
    "passkey": Kind("passkey", "depth {depth:.0%}", ("digits", "filler", "answer_budget")),
    "lines": Kind("lines", "{asked} lines", ("answer_budget", "by", "asked")),
    "line_tokens": Kind("lines", "{asked} tokens", ("answer_budget", "by", "asked")),
    "perplexity": Kind("perplexity", "stride {stride}", ("texts", "stride"), "perplexity", -1),
    "needles_by_method": Kind("methods", "{required} of {needles} needles", NEEDLES),
    "found_by_depth": Kind("heatmap", "depth {from_depth:.0%} to {to_depth:.0%}", (*NEEDLES, "tests", "depths")),
    "failures_by_third": Kind("thirds", "failures in the {third} third", (*NEEDLES, "tests"), better=0),
    "harness": Kind("harness", "{task} {metric} {filter}", HARNESS, "score", 0),
    "distance": Kind("distance", "numbers found", ("needles", "digits", "answer_budget", "haystack")),
    "found_by_prompt": Kind("distance", "numbers found in {context} tokens", ("needles", "digits", "haystack")),
    "needles_by_distance": Kind("distance", "numbers found, several in a test", ()),
    "probe": Kind("probe", "{required} of {needles} needles", NEEDLES),
}
SUMMARY = (  # score, lower and upper limit, first value tested, task, unit, better
    ("effective_length", "low", "high", "first_length", "effective length at {threshold:g}", "tokens", 1),
    ("smooth", "smooth_low", "smooth_high", "first_length", "smooth effective length at {threshold:g}", "tokens", 1),
    ("reach", "reach_low", "reach_high", "first_distance", "reach at {threshold:g}", "tokens", 1),
    ("f_at_effective_length", "", "", "", "f at the effective length", "pairs", 0),
    ("f_at_reach", "", "", "", "f at the reach", "pairs", 0),
    ("held_out_loss", "", "", "", "held-out loss", "nats", -1),
)


def read_records(paths: Sequence[Path]) -> tuple[pd.DataFrame, int]:
    """Read all rows of files, and of files that end in .jsonl in folders; count the rows of unknown kinds.

    Raises: DataError for a path without results, or a file that is broken.
    """
    records: list[Row] = []
    others = 0
    for path in paths:
        before = len(records)
        for file in [path] if path.is_file() else sorted(filter(is_result, path.rglob("*.jsonl"))):
            for row in rows_in(file):
                records += records_of(row, file)
                others += kind_of(row) is None and not is_summary(row)
        if len(records) == before:
            rule = "no results of an evaluation" if path.exists() else "no such file or folder"
            raise DataError(f"{path}: {rule}; give a run folder, a folder of results, or a .jsonl file of rows")
    runs = {record["model"]: {key: record[key] for key in ("run", "settings")} for record in records if record["run"]}
    for record in records:  # results that were written elsewhere belong to the run of the same name
        record.update({} if record["run"] else runs.get(record["model"], {}))
    return pd.DataFrame(records), others


def rows_in(file: Path) -> Iterator[Row]:
    """Read the rows of a file; lines that hold no object are left out.

    Raises: LabError for a file that is not text, or lines that are not JSON.
    """
    try:
        yield from (row for row in RunFolder(file.parent).read(file.name) if isinstance(row, dict))
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not text ({error.reason}); give files of rows") from error


def is_result(file: Path) -> bool:
    """Return whether a file holds rows, not single tests or metrics of training."""
    return file.name != "metrics.jsonl" and not file.name.startswith("tests-") and "cases" not in file.parent.name


def is_summary(row: Row) -> bool:
    """Return whether a row sums up a probe by length or by distance."""
    return "effective_length" in row or "reach" in row


def kind_of(row: Row) -> Kind | None:
    """Find the evaluation that a row is of."""
    name, protocol = row.get("metric"), str(row.get("protocol"))
    if protocol == "ruler" or protocol.startswith("lm-eval-"):
        name = "ruler" if protocol == "ruler" else "harness"
    elif name == "line_retrieval":
        name = "lines" if row.get("by") == "lines" else "line_tokens"
    elif "distance" in row and name not in KINDS:
        name = "distance"
    elif {"accuracy", "tests", "passed", "length"} <= set(row):
        name = "probe"
    return KINDS.get(str(name))


def records_of(row: Row, file: Path) -> list[Row]:
    """Bring one row to the common form; nothing where no kind owns it, or where it has no score.

    Raises: DataError for a row that lacks what its kind has.
    """
    kind = kind_of(row)
    try:
        if kind is None:
            return list(summaries(row, file)) if is_summary(row) else []
        if row["score"] is None:
            return []
        measured = {
            "task": kind.task.format_map(row).removesuffix(" none"),
            "length": row.get({"lines": "asked", "distance": "distance"}.get(kind.evaluation, "length")),
            "n": row["n"],
            **{name: row.get(name) for name in ("score", "low", "high")},
            "unit": kind.unit,
            "better": {None: kind.better, True: 1, False: -1}[row.get("higher_is_better")],
            "passed": passed(row) if kind.unit == "share" else None,
        }
        return [{**common(row, file, kind.evaluation, kind.alike), **measured}]
    except (KeyError, TypeError, ValueError) as error:
        name = "probe" if kind is None else kind.evaluation
        raise DataError(f"{file}: a row of {name} lacks {error}; measure it again") from error


def passed(row: Row) -> int | None:
    """Count the independent tests that a share counts; numbers of one test depend on each other."""
    if row.get("metric") == "needles_by_distance":
        return None
    return next((row[name] for name in COUNTED if name in row), None)


def summaries(row: Row, file: Path) -> Iterator[Row]:
    """Make a record of every number in a probe's summary; `below` is the first value tested where that one failed."""
    evaluation = "probe" if "effective_length" in row else "distance"
    shared = common(row, file, evaluation, [name for name in NEEDLES if name != "haystack"])
    shared["alike"].pop("seed")  # the number does not belong to one text or to one draw of the tests
    for name, low, high, first, task, unit, better in SUMMARY:
        score, below = row.get(name), row.get(first)
        if name not in row or (score is None and below is None) or (unit == "pairs" and not score):
            continue
        known = {"score": score, "low": row.get(low), "high": row.get(high), "below": below if score is None else None}
        tests = row.get("tests", row.get("n")) if unit == "tokens" else None
        yield {**shared, "task": task.format_map(row), "n": tests, **known, "unit": unit, "better": better}


def common(row: Row, file: Path, evaluation: str, alike: Sequence[str]) -> Row:
    """Collect what all records have; `alike` is what the records of one line agree in."""
    tokens = row.get("consumed_tokens")
    return {
        "evaluation": evaluation,
        "model": row["model"],
        "method": row["method"],
        "checkpoint": row.get("checkpoint") or (f"tokens-{tokens:015d}" if tokens else None),
        **{name: row.get(name) for name in ("weights", "precision")},
        "alike": {name: row.get(name) for name in ("protocol", "seed", *alike)},
        "below": None,
        "row": row,
        "folder": file.parent,
        **dict(zip(("run", "settings"), run_of(file.parent.resolve()), strict=True)),
    }


@cache
def run_of(folder: Path) -> tuple[str, Row]:
    """Find the run that a folder of results belongs to, and its settings; nothing where there is none."""
    for place in (folder, *folder.parents)[:DEPTH_OF_CONFIG]:
        if (place / "config.yaml").is_file():
            return str(place), read_settings(place)
    return "", {}
