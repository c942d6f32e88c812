"""The lengths that a run probes, and the tests that training recorded, which are not run again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from eval.engine.needle_tests import FinishedTests
from eval.engine.subject import Subject
from eval.probing.tests import EIGHTHS
from lab.config import load_experiment
from lab.probe.effective_length import NeedleProbe
from lab.train.choices import computes_in_bf16, method_name
from lab.train.folder import RunFolder


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
