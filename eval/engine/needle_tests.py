"""Finished needle tests on disk, the text that numbers are hidden in, and how often training saw a distance."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eval.engine.rows import Results, Row, shortened
from eval.engine.subject import Subject
from lab.counts import SavedCounts
from lab.errors import CheckpointError, ConfigError
from lab.probe.effective_length import ResultStore
from lab.probe.haystacks import load_haystack, read_text
from lab.train.checkpoints import COUNTS


class FinishedTests(ResultStore):
    """The finished needle tests of one key, in tests-TOKENS-KEY.jsonl; the file's first line holds the key.

    The key holds all that decides a test's outcome: checkpoint, position methods, protocol, text, seed. How many tests
    there are, at which lengths, and what passes is not in it: a probe that asks for more reuses the tests of one that
    asked for less. `by` is the field of a test's length or distance. `report` is called with the number of tests just
    added.
    """

    def __init__(self, folder: Path, consumed_tokens: int, key: Mapping[str, Any], by: str = "length") -> None:
        self.by = by
        head = {"key": dict(key)}
        self.path = folder / f"tests-{consumed_tokens:015d}-{shortened(json.dumps(key, sort_keys=True))}.jsonl"
        self.report: Any = lambda tests: None
        self.file = Results(self.path, (by, "test"))
        if not self.file.known:
            self.file.append([head])
        first, *rows = self.file
        if first != head:
            raise CheckpointError(f"{self.path}: its first line names other settings; move the file away")
        self.rows: dict[tuple[int, int], Row] = {(row[by], row["test"]): row for row in rows}

    def known(self, length: int) -> Mapping[int, Row]:
        """Return the finished tests of a length by number."""
        return {test: row for (other, test), row in self.rows.items() if other == length}

    def keep(self, length: int, rows: Mapping[int, Row]) -> None:
        """Add finished tests; they are on the disk when this returns."""
        named = {test: {self.by: length, "test": test, **row} for test, row in rows.items()}
        self.file.append(named.values())
        self.rows |= {(length, test): row for test, row in named.items()}
        self.report(len(named))


@contextmanager
def stoppable(finished: FinishedTests) -> Iterator[None]:
    """Say after Ctrl-C where the finished tests are.

    Raises: KeyboardInterrupt, with that line.
    """
    try:
        yield
    except KeyboardInterrupt as signal_:
        kept = f"{len(finished.rows):,} finished tests are in {finished.path}"
        raise KeyboardInterrupt(f"stopped; {kept}; the same command continues") from signal_


def counts_of(subject: Subject) -> SavedCounts | None:
    """Read the position frequency at a run's checkpoint; None for a Hugging Face folder."""
    if subject.model.folder is None or subject.checkpoint is None:
        return None
    path = subject.model.folder / "checkpoints" / subject.checkpoint / COUNTS
    return SavedCounts.read(path) if path.exists() else None


def haystack_of(subject: Subject, path: str | None, own: str | None) -> tuple[str, str | None]:
    """Read the text to hide numbers in: the file `path`, or a run's `own`, or its corpus; and name a file's setting.

    A run's own is what its folder keeps of it, if it keeps one.

    Raises: ConfigError for a Hugging Face folder without a file; DataError for a file that cannot be read.
    """
    experiment = subject.model.experiment
    if path is not None:
        return read_text(Path(path), "--haystack"), f"--haystack={path}"
    if experiment is None:
        raise ConfigError("--haystack: must be set, a Hugging Face folder has no corpus of its own; give a text file")
    source = None if own is None else f"probe.haystack={own}"
    run = subject.model.folder if own == experiment.probe.haystack else None
    return load_haystack(own, experiment.data, subject.tokenizer, run), source
