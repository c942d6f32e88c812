"""A probe that fails on any rank is recorded with its reason; training goes on as if there were no probes."""

import os
from unittest.mock import patch

import pytest

from eval.report.reading import read_records
from lab.probe import effective_length
from lab.probe.measuring import HeldOutLoss
from lab.train.callbacks.probing import ModelInTraining, Probing
from lab.train.checkpoints import candidates
from lab.train.folder import RunFolder
from tests.fits import exact_metrics, folders_of, records
from tests.ranks import train

SETTINGS = {
    "train.tokens": 1024 * 8,
    "train.checkpoint_every_tokens": None,
    "train.keep_checkpoints": 8,
    "probe.every_tokens": 1024 * 3,
    "probe.tests": 2,
    "probe.max_length": 128,
    "probe.distance_tests": 2,
}
OFF = {"probe.every_tokens": None, "probe.tests": 1, "probe.loss_tokens": 0}
DDP = {"train.devices": 2}
FSDP = {"train.devices": 2, "train.strategy": "fsdp"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("probe_failures")


def settings(place, name, **others):
    return SETTINGS | folders_of(place, name) | others


def train_and_fail(settings, owner, method, error):
    """Train where the last rank's first call of a method of the probe raises or returns garbage; return the status."""
    own, calls = getattr(owner, method), []

    def failing(*arguments, **options):
        calls.append(0)
        if int(os.environ.get("RANK", "0")) == settings.get("train.devices", 1) - 1 and len(calls) == 1:
            if isinstance(error, Exception):
                raise error
            return error(own(*arguments, **options))
        return own(*arguments, **options)

    with patch.object(owner, method, failing):
        return train(settings)


def garbage_ids(answers):
    return answers * 0 + 2**40


def no_rows(answers):
    return answers[:0]


def not_numbers(losses):
    return losses * float("nan")


@pytest.mark.parametrize(
    ("world", "strategy", "owner", "method", "error"),
    [
        pytest.param(2, DDP, ModelInTraining, "generate", RuntimeError("planted\nat length"), id="ddp_model"),
        pytest.param(2, FSDP, effective_length.NeedleProbe, "judge", MemoryError("planted"), id="fsdp_scoring"),
        pytest.param(2, FSDP, Probing, "whole", MemoryError("planted"), id="fsdp_room"),
        pytest.param(1, {}, RunFolder, "write_cases", OSError(28, "No space left on device"), id="full_disk"),
        pytest.param(2, DDP, HeldOutLoss, "sums", ValueError(), id="ddp_loss", marks=pytest.mark.slow),
    ],
)
def test_training_goes_on(place, ranks, world, strategy, owner, method, error):
    off, name = f"off{world}{strategy.get('train.strategy')}", f"{method}{world}"
    if not (place / off).exists():
        assert ranks(world).run(train, settings(place, off, **strategy, **OFF)) == [0] * world
    own = settings(place, name, **strategy)
    assert ranks(world).run(train_and_fail, own, owner, method, error) == [0] * world
    assert exact_metrics(place / name) == exact_metrics(place / off)
    failed, *whole = records(place / name, "probes.jsonl")
    rank = f"rank {world - 1}: " if method != "write_cases" else ""
    assert failed["failed"].startswith(f"{rank}{type(error).__name__}")
    assert "planted" in failed["failed"] or not str(error).startswith("planted")
    assert {record["consumed_tokens"] for record in whole if "effective_length" in record} > set()
    saved = [int(path.name.removeprefix("tokens-")) for path in candidates(place / name / "checkpoints")]
    assert failed["consumed_tokens"] in saved
    assert failed["consumed_tokens"] not in {record["consumed_tokens"] for record in whole}
    assert [row["tokens"] for row in read_records(place / name).probes] == sorted(saved)[1:]


@pytest.mark.parametrize(("world", "strategy"), [(1, {}), pytest.param(2, FSDP, marks=pytest.mark.slow)])
def test_a_probe_over_its_time_ends_as_failed_and_its_step_is_probed_again_by_resuming(place, ranks, world, strategy):
    name = f"late{world}"
    own = settings(place, name, **strategy)
    assert ranks(world).run(train, own | {"probe.max_seconds": 1e-9}) == [0] * world
    lines = records(place / name, "probes.jsonl")
    assert all(line["failed"].startswith("rank 0: TimeoutError: probe.max_seconds=1e-09") for line in lines)
    assert len(lines) == 3, "two intervals and the end"
    assert ranks(world).run(train, own, True) == [0] * world
    *kept, summary = records(place / name, "probes.jsonl")
    assert kept[:2] == lines[:2]
    assert summary["consumed_tokens"] == lines[2]["consumed_tokens"]
    assert "effective_length" in summary


GARBAGE = {
    "ids": (ModelInTraining, "generate", garbage_ids),
    "shape": (ModelInTraining, "generate", no_rows),
    "nan": (ModelInTraining, "losses", not_numbers),
}


@pytest.mark.parametrize("name", ["ids", *(pytest.param(name, marks=pytest.mark.slow) for name in ("shape", "nan"))])
def test_garbage_on_one_rank_changes_no_loss_of_training(place, ranks, name):
    if not (place / "offddp").exists():
        assert ranks(2).run(train, settings(place, "offddp", **DDP, **OFF)) == [0, 0]
    owner, method, garbage = GARBAGE[name]
    assert ranks(2).run(train_and_fail, settings(place, name, **DDP), owner, method, garbage) == [0, 0]
    assert exact_metrics(place / name) == exact_metrics(place / "offddp")
    assert any("effective_length" in record for record in records(place / name, "probes.jsonl"))
