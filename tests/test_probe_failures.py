"""Probes in training: one that fails is recorded and costs no step; a sharded model is gathered once for each."""

import os
from unittest.mock import patch

import pytest

from lab.probe.measuring import HeldOutLoss
from lab.probe.recall import RecallTest
from lab.runs.checkpoints import candidates
from lab.runs.folder import RunFolder
from lab.train.probe import ModelInTraining, Probing
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


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("world", "strategy", "owner", "method", "error"),
    [
        pytest.param(2, DDP, ModelInTraining, "generate", RuntimeError("planted\nat length"), id="ddp_model"),
        pytest.param(2, DDP, ModelInTraining, "generate", garbage_ids, id="ddp_garbage"),
        pytest.param(2, DDP, RecallTest, "scores", ValueError("planted"), id="ddp_recall", marks=SLOW),
        pytest.param(2, FSDP, Probing, "whole", MemoryError("planted"), id="fsdp_room"),
        pytest.param(1, {}, RunFolder, "write_cases", OSError(28, "No space left on device"), id="full_disk"),
        pytest.param(2, DDP, HeldOutLoss, "sums", ValueError(), id="ddp_loss", marks=SLOW),
    ],
)
def test_training_goes_on(place, ranks, world, strategy, owner, method, error):
    off, name = f"off{world}{strategy.get('train.strategy')}", f"{method}{world}{callable(error)}"
    if not (place / off).exists():
        assert ranks(world).run(train, settings(place, off, **strategy, **OFF)) == [0] * world
    own = settings(place, name, **strategy)
    assert ranks(world).run(train_and_fail, own, owner, method, error) == [0] * world
    assert exact_metrics(place / name) == exact_metrics(place / off)
    lines = records(place / name, "probes.jsonl")
    assert any("effective_length" in line for line in lines)
    if callable(error):
        return
    failed, *whole = lines
    rank = f"rank {world - 1}: " if method != "write_cases" else ""
    assert failed["failed"].startswith(f"{rank}{type(error).__name__}")
    saved = [int(path.name.removeprefix("tokens-")) for path in candidates(place / name / "checkpoints")]
    assert failed["consumed_tokens"] in saved
    assert failed["consumed_tokens"] not in {record["consumed_tokens"] for record in whole}
