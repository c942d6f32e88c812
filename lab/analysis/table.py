"""Runs, folders of evaluations and tables of runs as one table of results.

A table of runs is a .jsonl.xz file, so that many runs can be kept in a repository. Each line is one JSON object: the
run, the file in its folder, and a row of that file, its text, or its arrays. Commands that read run folders take such a
table as well: `unpacked` writes the folders to a temporary place, in the order of the runs' names.

    {"run": "cpu_demo-9c7344f7", "file": "probes.jsonl", "row": {"consumed_tokens": 500373, ...}}
    {"run": "cpu_demo-9c7344f7", "file": "counts.npz", "arrays": {"f": [3001, ...], "tokens": 2998141}}

A file plan.json in a run folder may name settings whose values are replicates: {"replicate": ["start.path"]}.
"""

from __future__ import annotations

import json
import lzma
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lab.analysis.conditions import Condition, find_conditions, read_run_settings
from lab.core.errors import CheckpointError, ConfigError, DataError, abbreviate, first_line, is_plain_name
from lab.core.files import read_object, walk, write_atomic
from lab.core.types import Row as Line
from lab.counts import SavedCounts
from lab.probe.reach import classify_reach, recompute_reach, with_reach
from lab.results.schema import Row, convert, find_form
from lab.results.store import read_records
from lab.runs.checkpoints import CONSUMED, RECORDS, check_files, folder_name
from lab.runs.folder import RunFolder
from lab.runs.source import no_folder

if TYPE_CHECKING:
    import pandas as pd

ENDING = ".jsonl.xz"
LONGEST_LINE, MOST_BYTES = 2**24, 2**28  # of a table as text; the largest of experiments/ has 4 MB


def unpack(table: Path, folder: Path) -> list[Path]:
    """Write the runs of a table below a new folder, and return theirs.

    Raises: DataError for a broken table, and for one that is larger than MOST_BYTES.
    """
    folder.mkdir()
    number = size = 0
    try:
        with lzma.open(table) as lines:
            # A line that never ends, or a small file that unpacks to terabytes, must not fill the memory or the disk.
            while line := lines.readline(LONGEST_LINE + 1):
                size += len(line)
                if len(line) > LONGEST_LINE or size > MOST_BYTES:
                    raise ValueError(f"longer than {LONGEST_LINE:,} bytes, or the table than {MOST_BYTES:,}")
                write_record(folder, json.loads(line))  # in the table's order, which the times of the files keep
                number += 1
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"line {number + 1}: {getattr(error, 'strerror', None) or first_line(error)}"
        raise DataError(f"{table}: not a table of runs ({reason}); restore it") from error
    return sorted(folder.iterdir())


def pack(runs: Iterable[Path], table: Path, replicate: Sequence[str] = ()) -> None:
    """Write what commands read of run folders to a table, and that some settings are replicates in all of them."""
    text = ""
    for run in sorted(runs):
        plan = {"file": "plan.json", "text": json.dumps({"replicate": [*replicate]}) + "\n"}
        for record in [*([plan] if replicate else []), *list_records(run)]:
            text += json.dumps({"run": run.name, **record}, separators=(",", ":")) + "\n"
    write_atomic(table, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def list_records(run: Path) -> Iterator[Line]:
    """List the records of a run folder's files, without those of single tests."""
    files = ("config.yaml", "environment.json", "provenance.json", "probes.jsonl", "counts.npz", "eval/**/*.jsonl")
    for path in [path for pattern in files for path in sorted(run.glob(pattern))]:
        file = path.relative_to(run).as_posix()
        if path.suffix == ".npz":
            with np.load(path) as saved:
                # Of tables no command reads these arrays, half of the size, and of the last one more than its start.
                arrays = {name: saved[name].tolist() for name in saved if name not in ("supervised", "g_unweighted")}
            if "supervised_f" in arrays:
                del arrays["supervised_f"][1:]
            yield {"file": file, "arrays": arrays}
        elif path.suffix != ".jsonl":
            yield {"file": file, "text": path.read_text("utf-8")}
        elif not path.name.startswith("tests-"):
            for row in map(json.loads, path.read_text("utf-8").splitlines()):
                if "test" not in row:
                    yield {"file": file, "row": row}


def write_record(folder: Path, record: Line) -> None:
    """Write one line of a table into its run's folder; only rows are added to a file that exists.

    Raises: ValueError for a path that leaves the run's folder; OSError for a text or repeated arrays.
    """
    names = [record["run"], *record["file"].split("/")]
    for name in names:
        if not is_plain_name(name):
            raise ValueError(f"{abbreviate(name)} is no name of a run or its file")
    path = folder.joinpath(*names)
    path.parent.mkdir(parents=True, exist_ok=True)
    if "arrays" in record:
        with path.open("xb") as binary:
            np.savez(binary, **record["arrays"])
        return
    is_row = "row" in record and path.suffix == ".jsonl"
    with path.open("a" if is_row else "x", encoding="utf-8") as file:
        file.write(json.dumps(record["row"]) + "\n" if is_row else record["text"])


@contextmanager
def unpacked(places: Sequence[Path]) -> Iterator[list[Path]]:
    """Replace tables of runs by folders that last until the block ends; other places stay as they are.

    Raises: DataError for a broken table.
    """
    others = [place for place in places if not place.name.endswith(ENDING)]
    runs: list[Path] = []
    with tempfile.TemporaryDirectory() as folder:
        for table in places:
            if table not in others:
                runs += unpack(table, Path(folder) / str(len(runs)))  # two tables may have runs of the same name
        yield [*others, *sorted(runs, key=lambda run: run.name)]


class ResultTable(NamedTuple):
    """Results and the runs that they are of.

    `rows` has a row for each result: the fields of lab.results.schema.Row; g, the demand from a reach on; `censored`,
    whether the number is below what was tested or at its end; `file`; and of a run its `condition`, the `replicate` by
    which runs are paired, its `base`, and `is_base`. `settings` and `conditions` are by the path of a run. Values of
    the settings `replicate` are replicates.
    """

    rows: pd.DataFrame
    settings: dict[str, Line]
    conditions: dict[str, Condition]
    replicate: set[str]
    skipped: list[str]


def is_run(place: Path) -> bool:
    return (place / "config.yaml").is_file() or place.name.endswith(ENDING)


def list_results(path: Path) -> list[Path]:
    """List the files of results at a place: the file itself, or those of a folder, without single tests."""
    files = [path] if path.name.endswith((ENDING, ".jsonl")) else []
    if path.is_dir():
        files = sorted(file for file in walk(path) if file.suffix == ".jsonl")
    others = ("metrics.jsonl", "tests-")
    return [file for file in files if not file.name.startswith(others) and "cases" not in file.parent.name]


def check_runs(places: Sequence[Path]) -> None:
    """Reject what is not a run folder, and two of one name.

    Raises: ConfigError with a line for each.
    """
    errors = [] if places else ["RUNS: must be set; name run folders"]
    for place in places:
        if not (place / "config.yaml").is_file():
            rule = "must be a run folder, with a config.yaml; name run folders" if place.exists() else no_folder(place)
            errors.append(f"{place}: {rule}")
    for name, n in sorted(Counter(place.resolve().name for place in places).items()):
        if n > 1:
            errors.append(f"{name}: must be the name of one folder only; rename the others")
    if errors:
        raise ConfigError(*errors)


def read_result_table(places: Sequence[Path], replicate: Collection[str] = ()) -> ResultTable:
    """Read the results of run folders, of folders of results and of .jsonl files; `replicate` is of `conditions`.

    Raises: DataError for a place without results, or a file that is broken; CheckpointError.
    """
    import pandas as pd

    rows: list[Line] = []
    settings: dict[str, Line] = {}
    plan = set(replicate)
    skipped: dict[str, None] = {}
    for place in places:
        before = len(rows)
        if (place / "config.yaml").is_file():
            settings[str(place.resolve())] = read_run_settings(place)
        for file in list_results(place):
            home = find_run(file)
            if home is not None:
                settings.setdefault(str(home), read_run_settings(home))
            rows += convert_file(file, home, skipped)
        if len(rows) == before and not (place / "config.yaml").is_file():
            rule = "no results of an evaluation" if place.exists() else "no such file or folder"
            raise DataError(f"{place}: {rule}; give a run folder, a folder of results, or a .jsonl file of rows")
    for run in settings:
        if (Path(run) / "plan.json").exists():
            planned = read_object(Path(run) / "plan.json", CheckpointError, "delete it")
            plan |= set(map(str, planned.get("replicate", ())))
    conditions = find_conditions(settings, plan)
    frame = pd.DataFrame(rows, columns=[*Row._fields, "g", "censored", "file"])
    names = ["condition", "replicate", "base", "is_base"]
    frame = frame.join(pd.DataFrame.from_dict(conditions, orient="index", columns=names), on="run")
    return ResultTable(frame, settings, conditions, plan, [*skipped])


def find_run(file: Path) -> Path | None:
    """Find the run folder that a file of results is in: up to two folders above it."""
    homes = file.resolve().parents[:3]
    return next((home for home in homes if (home / "config.yaml").is_file()), None)


def read_probes(run: Path) -> Iterator[Line]:
    """Read the summaries of probes, each with how its reach is censored and the demand from it on, where counted."""
    for record in with_reach(RunFolder(run).records("probes.jsonl")):
        if "effective_length" in record:  # which a complete probe has
            reach = record.get("reach")
            end = classify_reach(reach, record.get("first_distance"), record.get("last_distance"))
            yield {**record, "censored": end, "g_from_reach": demand_from(run, record[CONSUMED], reach)}


def convert_file(file: Path, run: Path | None, skipped: dict[str, None]) -> Iterator[Line]:
    """Read the results of a file, with the demand of its run; `skipped` gets the metrics of lines that are not read."""
    if file.name in RECORDS:
        check_files(file.parent, RECORDS)  # records that end early would give other numbers
    is_training = run is not None and file.parent.resolve() == run
    started, lines = read_results(file, [CONSUMED] if is_training else ())
    try:
        for line in with_reach(lines):
            converted = list(convert(line, str(run or ""), started))
            for row in converted:
                g = None
                if run is not None and row.metric.startswith("reach"):
                    g = demand_from(run, row.tokens, row.score)
                censored = classify_reach(row.score, row.first, row.last)
                yield {**row._asdict(), "g": g, "censored": censored, "file": file}
            if not converted and find_form(line) is None and "metric" in line:
                skipped[str(line["metric"])] = None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: a row of results lacks {error}; measure it again") from error


def read_results(file: Path, needed: Collection[str] = ()) -> tuple[str | None, list[Line]]:
    """Read when a file of results was started, None of older ones, and its rows, each with the numbers `needed`.

    Raises: CheckpointError.
    """
    records = [record for record in read_records(file, needed=needed) if "test" not in record]
    if records and "key" in records[0]:
        return str(records[0].get("started")), records[1:]
    return None, records


def read_counts(run: Path, tokens: int | None) -> SavedCounts | None:
    """Read the counts of a run at the probe after a number of tokens; None if it has none."""
    path, end = run / f"counts/{folder_name(tokens or 0)}.npz", run / "counts.npz"
    if path.exists():
        return SavedCounts.read(path)
    # A record has the counts of the run's end only.
    counts = SavedCounts.read(end) if end.exists() else None
    return counts if counts and counts.tokens == tokens else None


def demand_from(run: Path, tokens: int | None, reach: float | None) -> float | None:
    """Return the demand from a reach on, at the probe after a number of tokens; None if it was not counted."""
    counts = None if reach is None else read_counts(run, tokens)
    return counts.g_from(int(reach or 0)) if counts else None


def measure_reach(table: ResultTable, run: str) -> Line | None:
    """Return the reach of a run that probe-lab distance has measured without another method, None if it has not.

    Of several texts, the one counts whose results are in the uppermost folder. `best` is the largest accuracy.
    """
    rows = table.rows[(table.rows.run == run) & (table.rows.metric == "accuracy") & (table.rows.method == "rope+plain")]
    rows = rows[rows.file.map(lambda file: file.name != "probes.jsonl").astype(bool)]
    if rows.empty:
        return None
    depth = rows.file.map(lambda file: len(file.parts))
    rows = rows[depth == depth.min()]
    tests = {int(row.distance): row.record for row in rows.itertuples()}
    reach = recompute_reach(tests, table.settings[run].get("probe.threshold", 0.8))
    censored = classify_reach(reach["reach"], reach["first_distance"], reach["last_distance"])
    return {**reach, "censored": censored, CONSUMED: int(rows.tokens.iloc[0]), "best": rows.score.max()}


def bound_reach(reach: float | None, high: float | None, last: float, most: float = np.inf) -> tuple[float, float]:
    """Return between which values the log of a reach is; one at the last distance tested is `most` at most.

    Example:
        >>> bound_reach(None, 1, 9), bound_reach(None, None, 9), bound_reach(1.0, None, 1), bound_reach(1.0, None, 9)
        ((-inf, 0.0), (-inf, inf), (0.0, inf), (0.0, 0.0))
    """
    reach, high = (np.nan if value is None else value for value in (reach, high))
    if np.isnan(reach):  # of tests that show no number, the upper limit is all that is known
        return -np.inf, np.inf if np.isnan(high) else float(np.log(high))
    bound = float(np.log(reach))
    return bound, max(bound, float(np.log(most))) if reach >= last else bound
