"""Finished needle tests on disk, and the tests that training recorded, which are not run again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eval.engine.rows import Results, Row, shortened
from eval.engine.subject import Subject
from lab.config import load_experiment
from lab.errors import CheckpointError
from lab.probe.effective_length import NeedleProbe, ResultStore
from lab.train.checkpoints import Checkpoint
from lab.train.choices import computes_in_bf16, method_name
from lab.train.folder import RunFolder

EIGHTHS = 8  # lengths up to the training window of a model without a probe of its own


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


def finished_tests(subject: Subject, probe: NeedleProbe, folder: Path) -> FinishedTests:
    """Open the file of the model's finished tests.

    Raises: LabError.
    """
    model, weights = subject.model, subject.weights
    if model.folder is not None and subject.checkpoint is not None and model.consumed_tokens is not None:
        weights = Checkpoint(model.folder / "checkpoints" / subject.checkpoint, model.consumed_tokens).digest
    key = {
        "weights": weights,
        "method": model.method,
        "precision": "bf16" if subject.precision == "bfloat16" else "fp32",
        "device": subject.device.type,
        "protocol": probe.config.protocol,
        "needles": probe.needles,
        "digits": probe.digits,
        "answer_budget": probe.config.budget,
        "haystack": hashlib.sha256(probe.haystack.encode()).hexdigest(),
        "shortest_prompt": probe.case(probe.shortest(), 0).prompt_hash,  # names the tokenizer and how cases are drawn
        "seed": probe.seed,
    }
    return FinishedTests(folder, model.consumed_tokens or 0, key)


def own_lengths(subject: Subject, probe: NeedleProbe) -> list[int]:
    """List the lengths that the run probes, up to its training window where it names no last one.

    Eighths of the training window for a Hugging Face folder. The first with room for a test where there is none.
    """
    experiment, shortest = subject.model.experiment, probe.shortest()
    longest = subject.model.train_len or shortest
    step = max(1, longest // EIGHTHS)
    if experiment is not None:
        step, longest = experiment.probe.step, experiment.probe.max_length or longest
    first = -(-shortest // step) * step
    return list(range(first, longest + 1, step)) or [first]


def reuse_recorded(subject: Subject, probe: NeedleProbe, finished: FinishedTests, lengths: Sequence[int]) -> int:
    """Reuse the tests that training recorded in cases/ and this command would repeat; return how many.

    These are tests with the same prompt and answer budget, of the same weights, position methods, precision and kind
    of device.
    """
    experiment, folder = subject.model.experiment, subject.model.folder
    if experiment is None or folder is None or not probed_as_in_training(subject, probe):
        return 0
    rows = {}
    for row in RunFolder(folder).read(f"cases/tokens-{subject.model.consumed_tokens:015d}.jsonl"):
        if "length" not in row:  # a one-number test
            continue
        place = (row["length"], row["test"])
        wanted = row["length"] in lengths and row["test"] < probe.config.tests
        if wanted and place not in finished.rows and probe.case(*place).prompt_hash == row["prompt_hash"]:
            rows[place] = row
    finished.rows |= rows
    return len(rows)


def probed_as_in_training(subject: Subject, probe: NeedleProbe) -> bool:
    """Return whether training's probe computed as this command does."""
    assert subject.model.folder is not None, "asked of runs only"
    trained = load_experiment(subject.model.folder / "config.yaml")
    gpus = gpus_of(subject.model.folder)
    device = "cuda" if gpus and trained.train.accelerator != "cpu" else "cpu"
    own = trained.probe
    return (
        gpus is not None
        and device == subject.device.type
        and computes_in_bf16(trained, subject.device) == (subject.precision == "bfloat16")
        and method_name(trained) == subject.model.method
        and (own.protocol, own.budget) == (probe.config.protocol, probe.config.budget)
    )


def gpus_of(folder: Path) -> list[str] | None:
    """Read which GPUs a run's machine had; None if that was not recorded."""
    try:
        gpus: list[str] = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["hardware"]["gpus"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return gpus
