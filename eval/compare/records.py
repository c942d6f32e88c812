"""Brings the rows of all evaluations to one form.

Every evaluation writes one JSON object a line, with names of its own. KINDS says for each what a row is called by, what
its score is, and which fields two rows must agree in to be results of the same task. Rows of a kind that is not known
are passed over and counted.

Outcomes of single tests come from the file that a row names under `cases`; those of needle tests from the run's cases/
and from tests-TOKENS-KEY.jsonl beside the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from eval.common.results import Row
from lab.errors import DataError
from lab.runs.folder import RunFolder

Key = tuple[Any, ...]
Outcomes = dict[Key, float]  # by test number and prompt


class Kind(NamedTuple):
    """How rows of an evaluation are read: which are its own, what names a line, and what they measure."""

    evaluation: str
    owns: Callable[[Row], bool]
    alike: tuple[str, ...]
    task: Callable[[Row], str]
    unit: str
    higher_is_better: bool | None = True


@dataclass(frozen=True)
class Record:
    """One result.

    `share` tells that the score is the share of n tests that passed; then `passed` counts them. `alike` is what the
    rows of one line agree in, by name.
    """

    evaluation: str
    model: str
    checkpoint: str | None
    weights: str | None
    method: str
    precision: str | None
    task: str
    length: int | None
    n: int
    score: float
    low: float | None
    high: float | None
    unit: str
    higher_is_better: bool | None
    passed: int | None
    alike: tuple[tuple[str, str], ...]
    row: Row = field(repr=False, compare=False)
    folder: Path = field(repr=False, compare=False)


NEEDLES = ("needles", "digits", "required", "answer_budget", "haystack")
KINDS = (
    Kind(
        "ruler",
        lambda row: row.get("protocol") == "ruler",
        ("version", "answer_budget", "source", "standins"),
        lambda row: str(row["task"]),
        "percent",
    ),
    Kind(
        "passkey",
        lambda row: row.get("metric") == "passkey",
        ("digits", "filler", "answer_budget"),
        lambda row: f"depth {row['depth']:.0%}",
        "share",
    ),
    Kind(
        "lines",
        lambda row: row.get("metric") == "line_retrieval",
        ("answer_budget", "by", "asked"),
        lambda row: f"{row['asked']} {'lines' if row['by'] == 'lines' else 'tokens'}",
        "share",
    ),
    Kind(
        "perplexity",
        lambda row: row.get("metric") == "perplexity",
        ("texts", "stride"),
        lambda row: f"stride {row['stride']}",
        "perplexity",
        False,
    ),
    Kind(
        "methods",
        lambda row: row.get("metric") == "needles_by_method",
        NEEDLES,
        lambda row: f"{row['required']} of {row['needles']} needles",
        "share",
    ),
    Kind(
        "heatmap",
        lambda row: row.get("metric") == "found_by_depth",
        (*NEEDLES, "tests", "depths"),
        lambda row: f"depth {row['from_depth']:.0%} to {row['to_depth']:.0%}",
        "share",
    ),
    Kind(
        "thirds",
        lambda row: row.get("metric") == "failures_by_third",
        (*NEEDLES, "tests"),
        lambda row: f"failures in the {row['third']} third",
        "share",
        None,
    ),
    Kind(
        "harness",
        lambda row: str(row.get("protocol")).startswith("lm-eval-"),
        ("task_version", "definition", "metric", "filter", "fewshot", "limit", "max_gen_toks", "chat"),
        lambda row: f"{row['task']} {row['metric']}" + (f" {row['filter']}" if row["filter"] != "none" else ""),
        "score",
    ),
    Kind(
        "probe",
        lambda row: {"accuracy", "tests", "passed", "length"} <= set(row),
        NEEDLES,
        lambda row: f"{row['required']} of {row['needles']} needles",
        "share",
    ),
)
COUNTED = ("passed", "found", "failures")  # what a share counts, by the first name that a row has


def read_records(paths: Sequence[Path]) -> tuple[list[Record], int]:
    """Read all rows of files, and of files that end in .jsonl in folders; count the rows of kinds not known.

    Raises: DataError for a path without results, or a file that is broken.
    """
    records, others = [], 0
    for path in paths:
        files = [path] if path.is_file() else sorted(path.rglob("*.jsonl"))
        found = []
        for file in files:
            if path.is_file() or is_result(file):
                for row in rows_in(file):
                    record = record_of(row, file)
                    found += [record] if record is not None else []
                    others += kind_of(row) is None and "effective_length" not in row
        if not found:
            rule = "no results of an evaluation" if path.exists() else "no such file or folder"
            raise DataError(f"{path}: {rule}; give a run folder, a folder of results, or a .jsonl file of rows")
        records += found
    return records, others


def rows_in(file: Path) -> Iterator[Row]:
    """Read the rows of a file; lines that hold no object are none.

    Raises: LabError for a file that is not text, or lines that are not JSON.
    """
    try:
        yield from (row for row in RunFolder(file.parent).read(file.name) if isinstance(row, dict))
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not text ({error.reason}); give files of rows") from error


def is_result(file: Path) -> bool:
    """Return whether a file holds rows, not single tests, metrics of training, or data."""
    return file.name != "metrics.jsonl" and not file.name.startswith("tests-") and "cases" not in file.parent.name


def kind_of(row: Row) -> Kind | None:
    """Find the evaluation that a row is of."""
    return next((kind for kind in KINDS if kind.owns(row)), None)


def record_of(row: Row, file: Path) -> Record | None:
    """Bring one row to the common form; None where no kind owns it, or where it has no score.

    Raises: DataError for a row that lacks what its kind has.
    """
    kind = kind_of(row)
    if kind is None:
        return None
    try:
        score = row["score"]
        if score is None:
            return None
        task, unit = kind.task(row), kind.unit
        counted = next((row[name] for name in COUNTED if name in row), None) if unit == "share" else None
        return Record(
            kind.evaluation,
            row["model"],
            row.get("checkpoint"),
            row.get("weights"),
            row["method"],
            row.get("precision"),
            task,
            row.get("length") if kind.evaluation != "lines" else row["asked"],
            row["n"],
            score,
            row.get("low"),
            row.get("high"),
            unit,
            row.get("higher_is_better") if kind.evaluation == "harness" else kind.higher_is_better,
            counted,
            tuple((name, json.dumps(row.get(name))) for name in ("protocol", "seed", *kind.alike)),
            row,
            file.parent,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: a row of {kind.evaluation} lacks {error}; measure it again") from error


def read_cases(path: Path, length: int) -> list[Row]:
    """Read the needle tests of a length, by number; none where there is no file."""
    if not path.is_file():
        return []
    rows = by_length(path, path.stat().st_mtime_ns).get(length, [])
    return sorted(rows, key=lambda row: int(row["test"]))


@lru_cache(maxsize=8)
def by_length(path: Path, changed: int) -> dict[int, list[Row]]:
    """Read all needle tests of a file; `changed` tells one state of the file from another."""
    found: dict[int, list[Row]] = {}
    for row in RunFolder(path.parent).read(path.name):
        if "length" in row:
            found.setdefault(row["length"], []).append(row)
    return found


def outcomes(record: Record) -> Outcomes | None:
    """Return what each test scored, by number and prompt; None where that is not recorded for all n tests."""
    row = record.row
    if record.evaluation in ("probe", "methods"):
        files = [record.folder / f"cases/tokens-{row.get('consumed_tokens') or 0:015d}.jsonl"]
        if record.evaluation == "methods":
            files = list(methods_files(row, record.folder))
        cases = [case for path in files for case in read_cases(path, row["length"]) if case["test"] < record.n]
        passes = {(case["test"], case["prompt_hash"]): float(case["found"] >= row["required"]) for case in cases}
        return passes if len(passes) == record.n and sum(passes.values()) == record.passed else None
    name = row.get("cases")
    path = record.folder / str(name)
    if name is None or not path.is_file():
        return None
    found = {
        (test["test"], test.get("prompt_hash")): scored(test, row) for test in RunFolder(path.parent).read(path.name)
    }
    values = {key: value for key, value in found.items() if value is not None}
    return values if len(values) == record.n else None


def scored(test: Row, row: Row) -> float | None:
    """Read what one test scored."""
    if "nll" in test:
        return float(test["nll"] / test["tokens"])
    value = test["scores"].get(row["metric"]) if "scores" in test else test.get("passed", test.get("score"))
    if isinstance(value, list):  # a log-likelihood and its weight
        return float(-value[0] / value[1])
    return float(value) if isinstance(value, int | float) else None


def methods_files(row: Row, folder: Path) -> Iterator[Path]:
    """Find the finished tests that a row of eval.methods was counted from."""
    for path in sorted(folder.glob("tests-*.jsonl")):
        key = next(RunFolder(folder).read(path.name), {}).get("key", {})
        same = all(key.get(name) == row[name] for name in ("method", "protocol", "needles", "digits", "seed"))
        budget = key.get("answer_budget") == row["answer_budget"]
        hashes = all(str(key.get(name)).startswith(str(row[name])) for name in ("weights", "haystack"))
        precision = key.get("precision") == {"bfloat16": "bf16", "float32": "fp32"}.get(row["precision"])
        if same and budget and hashes and precision:
            yield path
            return
