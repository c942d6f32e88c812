"""Several processes train what one trains: same losses, counts, probes, on gloo."""

from pathlib import Path

import numpy as np
import pytest

from tests.test_fit import assert_same_tests, fit, records

LOSS_TOLERANCE = 1e-5  # sums in another order


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("distributed")


@pytest.fixture(scope="module")
def alone(place):
    return fit(place, "alone")


def assert_equal_training(run: Path, alone: Path) -> None:
    ours, theirs = records(run), records(alone)
    np.testing.assert_allclose([r["loss"] for r in ours], [r["loss"] for r in theirs], atol=LOSS_TOLERANCE)
    assert [r["consumed_tokens"] for r in ours] == [r["consumed_tokens"] for r in theirs]
    np.testing.assert_array_equal(np.load(run / "counts.npz")["f"], np.load(alone / "counts.npz")["f"])
    assert_same_tests(run, alone)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_train_as_one(place, alone, strategy):
    run = fit(place, strategy, "--train.devices=2", f"--train.strategy={strategy}")
    assert_equal_training(run, alone)


def test_a_run_goes_on_with_another_number_of_processes(place, alone):
    half = ("--train.checkpoint_every_tokens=8192",)
    run = fit(place, "moved", *half)
    for path in sorted((run / "checkpoints").glob("tokens-*"))[1:]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    fit(place, "moved", *half, "--resume", "--train.devices=2")
    assert_equal_training(run, alone)
