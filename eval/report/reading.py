"""Reads the files of one run folder that a report shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.counts import SavedCounts
from lab.errors import CheckpointError
from lab.train.folder import RunFolder

Row = dict[str, Any]
ONE = "found_by_distance"  # the metric of one-number tests, which training's rows do not name
TESTS = ("digits", "prompt_tokens", "haystack", "seed")  # what one-number tests are beside their distance


@dataclass(frozen=True)
class Records:
    """The probes of a run and its results at the last of them.

    `probes` are the summaries of training's probes in their order; `distances`, `lengths` and `reaches` are the rows at
    `tokens`, of training and of evaluations.
    """

    tokens: int
    probes: list[Row]
    distances: list[Row]
    lengths: list[Row]
    reaches: list[Row]


def read_records(run: Path) -> Records:
    """Read probes.jsonl and the evaluations in eval/.

    Raises: CheckpointError for broken files.
    """
    training = read_lines(run / "probes.jsonl")
    for number, row in enumerate(training, start=1):
        if not isinstance(row.get("consumed_tokens"), int):
            raise CheckpointError(f"{run / 'probes.jsonl'}: line {number} has no consumed_tokens; correct or delete it")
    evaluated = [row for file in results_in(run / "eval") for row in read_lines(file)]
    probes = sorted((row for row in training if "effective_length" in row), key=lambda row: row["consumed_tokens"])
    tokens = max((row.get("consumed_tokens") or 0 for row in probes or evaluated), default=0)
    rows = [row for row in (*training, *evaluated) if row.get("consumed_tokens") == tokens]
    protocol = probes[-1].get("protocol") if probes else None
    distances = [named(row) for row in rows if {"distance", "score"} <= set(row) and row.get("metric", ONE) == ONE]
    return Records(
        tokens,
        [{**row, "tokens": row["consumed_tokens"], "probe": number} for number, row in enumerate(probes)],
        of_one_kind(distances),
        [named(row) for row in rows if {"length", "verdict", "score"} <= set(row) and row.get("protocol") == protocol],
        [named(row) for row in rows if "reach" in row],
    )


def of_one_kind(rows: Sequence[Row]) -> list[Row]:
    """Keep of each method the rows whose tests are those of its last row, so that a curve has tests of one kind."""
    last = {row["method"]: [row.get(name) for name in TESTS] for row in rows}
    return [row for row in rows if [row.get(name) for name in TESTS] == last[row["method"]]]


def results_in(folder: Path) -> list[Path]:
    """List the files of results from the oldest on, but not those of single tests."""
    files = sorted(folder.rglob("*.jsonl"), key=lambda file: (file.stat().st_mtime, file.name))
    return [file for file in files if not file.name.startswith("tests-") and "cases" not in file.parent.name]


def read_lines(file: Path) -> list[Row]:
    """Read the objects of a .jsonl file; none where it does not exist.

    Raises: CheckpointError.
    """
    try:
        rows = list(RunFolder(file.parent).read(file.name))
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error}); restore it") from error
    if not all(isinstance(row, dict) for row in rows):
        raise CheckpointError(f"{file}: a line is not a JSON object; correct or delete it")
    return rows


def named(row: Row) -> Row:
    """Shorten the method of a row."""
    return {**row, "method": short_method(str(row.get("method", "rope+plain")))}


def short_method(method: str) -> str:
    """Leave the frequency method out where it is plain RoPE.

    Example:
        >>> short_method("rope+plain"), short_method("rope+string(shift=64,window=32)"), short_method("pi(4)+plain")
        ('plain', 'string(shift=64,window=32)', 'pi(4)+plain')
    """
    frequency, _, distance = method.partition("+")
    return distance if frequency == "rope" else method


def read_frequency(run: Path, points: int) -> Iterator[Row]:
    """Read f(i) at no more than `points` positions, equally spaced.

    Raises: CheckpointError.
    """
    file = run / "counts.npz"
    if not file.exists():
        return
    f = SavedCounts.read(file).f
    for i in np.unique(np.linspace(1, len(f) - 1, points).round().astype(int)) if len(f) > 1 else ():
        yield {"i": int(i), "f": int(f[i])}
