"""Several processes train what one trains: same losses, counts, probes, on gloo."""

import shutil

import pytest

from tests.fits import assert_equal_training, command, fit
from tests.launching import running, workers

LOSS_TOLERANCE = 1e-5  # sums in another order
SHORT = ("--train.tokens=10240", "--train.checkpoint_every_tokens=4096")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("distributed")


@pytest.fixture(scope="module")
def alone(place):
    return fit(place, "alone", *SHORT)


def fit_as_workers(place, name, *options):
    """Train as two workers of a torchrun, which loads torch in none of them."""
    words = command(place, name, *options)
    with running(place, [(words, variables) for variables in workers(2)]) as processes:
        statuses, outputs = processes.finish()
    assert statuses == [0, 0], outputs
    return place / "runs" / name


@pytest.mark.parametrize(("strategy", "start"), [("ddp", fit), ("fsdp", fit_as_workers)], ids=["ddp", "fsdp"])
def test_two_processes_train_as_one(place, alone, strategy, start):
    run = start(place, strategy, *SHORT, f"--train.strategy={strategy}", "--train.devices=2")
    assert_equal_training(run, alone, LOSS_TOLERANCE)


def test_a_run_goes_on_with_another_number_of_processes(place, alone):
    run = shutil.copytree(alone, place / "runs" / "moved")
    for path in sorted((run / "checkpoints").glob("tokens-*"))[1:]:
        shutil.rmtree(path)
    fit_as_workers(place, "moved", *SHORT, "--train.devices=2", "--resume")
    assert_equal_training(run, alone, LOSS_TOLERANCE)
