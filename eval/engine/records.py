"""Results of any evaluations as records of one form, and runs with their probes.

Every evaluation writes one JSON object a line, with names of its own. KINDS lists for each what its rows are called
and what their score is. Its last field names in what two rows must agree to be results of the same task.
"""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lab.core import command
from lab.core.errors import ConfigError, DataError
from lab.core.files import walk
from lab.core.types import Row
from lab.probe.reach import with_reach
from lab.runs.arms import classify_reach, read_settings
from lab.runs.checkpoints import RECORDS, check_files
from lab.runs.folder import RunFolder
from lab.runs.probe_records import with_demand
from lab.runs.source import no_folder
from lab.runs.tables import ENDING

COLUMNS = ["model", "checkpoint", "method"]  # what a column of eval.compare is, unless --by names it
WIDER = ["precision", "weights"]  # and where two results of one task would else be in one cell
NUMBER = ("needles", "digits", "answer_budget", "haystack")
NEEDLES = ("needles", "digits", "required", "answer_budget", "haystack")
HARNESS = ("task_version", "definition", "metric", "filter", "fewshot", "limit", "chat", "truncate")


class ProbedRun(NamedTuple):
    """A run's folder, its settings by their dotted names, and the summaries of its probes by rising tokens."""

    path: Path
    settings: Row
    probes: list[Row]


def is_run(place: Path) -> bool:
    return (place / "config.yaml").is_file() or place.name.endswith(ENDING)


def read_runs(places: Sequence[Path]) -> dict[str, ProbedRun]:
    """Read runs by their names.

    Raises: ConfigError for what is not a run folder, or for two of one name; CheckpointError for broken files.
    """
    names = [place.resolve().name for place in places]
    errors = []
    for place in places:
        if not place.exists():
            errors.append(f"{place}: {no_folder(place)}")
        elif not (place / "config.yaml").is_file():
            errors.append(f"{place}: must be a run folder, with a config.yaml; name run folders")
    for name in sorted(set(names)):
        if names.count(name) > 1:
            errors.append(f"{name}: must be the name of one folder only; rename the others")
    if not places:
        errors.append("RUNS: must be set; name run folders")
    if errors:
        raise ConfigError(*errors)
    runs = {}
    for name, place in zip(names, places, strict=True):
        check_files(place, RECORDS)  # records that end early would give other numbers
        probes = sorted(with_demand(place), key=itemgetter("consumed_tokens"))
        runs[name] = ProbedRun(place, read_settings(place), probes)
    return runs


class Kind(NamedTuple):
    """How an evaluation's rows are read: their task, as a template, and the fields in which rows of a line agree."""

    evaluation: str
    task: str
    alike: tuple[str, ...]
    unit: str = "share"
    length: str = "length"  # the field of the length, or of the distance


KINDS = {  # by what find_kind returns
    "ruler": Kind("ruler", "{task}", ("version", "answer_budget", "source", "standins"), "percent"),
    "passkey": Kind("passkey", "depth {depth:.0%}", ("digits", "filler", "answer_budget")),
    "line_retrieval": Kind("lines", "{asked} tokens", ("answer_budget", "by", "asked"), length="asked"),
    "perplexity": Kind("perplexity", "stride {stride}", ("texts", "stride", "bos"), "perplexity"),
    "needles_by_method": Kind("methods", "{required} of {needles} needles", NEEDLES),
    "harness": Kind("harness", "{task} {metric} {filter}", HARNESS, "score"),
    "distance": Kind("distance", "retrieval accuracy", NUMBER, length="distance"),
    "probe": Kind("probe", "{required} of {needles} needles", NEEDLES),
    "recall": Kind("recall", "gain from evidence", ("evidence", "texts", "window"), "nats", "distance"),
    "no_evidence": Kind("recall", "nats without evidence", ("evidence", "texts", "window"), "nats", "distance"),
}
ENDS = {  # first and last value tested of a number that may be censored
    "reach": ("first_distance", "last_distance"),
    "effective_length": ("first_length", "last_length"),
    "smooth": ("first_length", "last_length"),
}
SUMMARY = (  # score, lower and upper limit, task, unit
    ("effective_length", "low", "high", "effective length at {threshold:g}", "tokens"),
    ("smooth", "smooth_low", "smooth_high", "smooth effective length at {threshold:g}", "tokens"),
    ("reach", "reach_low", "reach_high", "reach at {threshold:g}", "tokens"),
    ("f_at_effective_length", "", "", "f at the effective length", "pairs"),
    ("f_at_reach", "", "", "f at the reach", "pairs"),
    ("held_out_loss", "", "", "held-out loss", "nats"),
)


def list_results(path: Path) -> list[Path]:
    """List the files of results at a place: the file itself, or those of a folder, without single tests."""
    files = [path] if path.name.endswith((ENDING, ".jsonl")) else []
    if path.is_dir():
        files = sorted(file for file in walk(path) if file.suffix == ".jsonl")
    others = ("metrics.jsonl", "tests-")
    return [file for file in files if not file.name.startswith(others) and "cases" not in file.parent.name]


def read_records(paths: Sequence[Path]) -> pd.DataFrame:
    """Read the rows of files, and of files that end in .jsonl in folders, as records of one form.

    Rows of other measurements are skipped, and a message names them.

    Raises: DataError for a path without results, or a file that is broken.
    """
    records: list[Row] = []
    unread: dict[str, None] = {}
    for path in paths:
        before = len(records)
        for file in list_results(path):
            if file.name in RECORDS:
                check_files(file.parent, RECORDS)
            origin = describe_origin(file)
            try:
                for row in with_reach(RunFolder(file.parent).read(file.name)):
                    converted = [{"row": row, **origin, **record} for record in convert_row(row)]
                    records += converted
                    if not converted and find_kind(row) is None and "metric" in row:
                        unread[row["metric"]] = None
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(f"{file}: a row of results lacks {error}; measure it again") from error
        if len(records) == before:
            rule = "no results of an evaluation" if path.exists() else "no such file or folder"
            raise DataError(f"{path}: {rule}; give a run folder, a folder of results, or a .jsonl file of rows")
    # A table without a word about skipped rows would look complete.
    if unread:
        command.show(f"skipped rows of {', '.join(unread)}, which are joined with no others", error=True)
    return pd.DataFrame(records)


def describe_origin(file: Path) -> Row:
    """Collect where a file's rows belong, with the settings of its run, up to two folders above it."""
    place = file.parent.resolve()
    # Results are in the run folder, in its eval/, or in a folder of eval/ such as probe-*/.
    for home in (place, *place.parents)[:3]:
        if (home / "config.yaml").is_file():
            return {"folder": file.parent, "run": str(home), "settings": read_settings(home)}
    # The model of a Hugging Face folder has no run, and so no settings.
    return {"folder": file.parent, "run": "", "settings": {}}


def convert_row(row: Row) -> Iterator[Row]:
    """Convert a row to the common form; a probe's summary gives a record for each of its numbers.

    `below` is the first value tested if that one failed; `censored` is as in lab.runs.arms.
    """
    kind = find_kind(row)
    tokens = row.get("consumed_tokens")
    shared = {name: row.get(name) for name in (*COLUMNS, *WIDER, "score", "low", "high")}
    shared["checkpoint"] = row.get("checkpoint") or (f"tokens-{tokens:015d}" if tokens else None)
    shared |= {"below": None, "censored": None, "passed": np.nan, "dips": 0}
    if kind is not None and row["score"] is not None:
        if kind.unit == "share":
            shared["passed"] = row.get("passed", row.get("found", np.nan))
        yield shared | {
            "evaluation": kind.evaluation,
            "alike": {name: row.get(name) for name in ("protocol", "seed", *kind.alike)},
            "task": kind.task.format_map(row).removesuffix(" none"),
            "length": row.get(kind.length),
            "n": row["n"],
            "unit": kind.unit,
        }
    if kind is not None or not {"effective_length", "reach"} & set(row):
        return
    # What remains are summaries, which have no metric that names them.
    shared["evaluation"] = "probe" if "effective_length" in row else "distance"
    shared["alike"] = {name: row.get(name) for name in ("protocol", *NEEDLES[:-1])}  # of no one draw of tests
    for name, low, high, task, unit in SUMMARY:
        score = row.get(name)
        first, last = (row.get(end) for end in ENDS.get(name, ("", "")))
        # None is a result where a first value was tested: the model failed there.
        if name not in row or (score is None and first is None) or (unit == "pairs" and not score):
            continue
        limits = {"score": score, "low": row.get(low), "high": row.get(high), "below": first if score is None else None}
        limits["censored"] = classify_reach(score, first, last)
        limits["dips"] = int(name == "reach" and bool(row.get("dips")))
        tests = row.get("n") if unit == "tokens" else None
        if "length" in ENDS.get(name, ("",))[0]:  # a probe has `tests`; a reach has its own n, or none
            tests = row.get("tests", row.get("n"))
        yield shared | limits | {"task": task.format_map(row), "n": tests, "unit": unit}


def find_kind(row: Row) -> Kind | None:
    """Find the evaluation that a row is of."""
    name = row.get("metric")
    protocol = str(row.get("protocol"))
    if protocol == "ruler" or protocol.startswith("lm-eval-"):
        name = protocol[:5].replace("lm-ev", "harness")
    elif "distance" in row and name in (None, "found_by_distance"):
        name = "distance"
    elif {"accuracy", "tests", "passed", "length"} <= set(row):
        name = "probe"
    return KINDS.get(str(name))
