"""train.final_checkpoints: the last steps' checkpoints are kept whatever else is saved, killed or not, and averaged."""

import signal

import numpy as np
import pytest
import torch

from lab.loading import read_weights
from lab.merge import main as merge
from lab.train.checkpoints import candidates, newest_checkpoints
from tests.fits import UNPROBED, assert_same_run, command, records, train
from tests.forked import python
from tests.launching import patched

OFTEN = (*UNPROBED, "--train.checkpoint_every_tokens=1", "--track.picture=false")  # after every step
FINAL = (*OFTEN, "--train.tokens=8192", "--train.final_checkpoints={count: 3, every_steps: 2}")  # steps 4, 6 and 8
KILL_AFTER = """
import itertools, os
from lab.train import checkpoints
calls, publish = itertools.count(1), checkpoints.publish
def fatal(*given):
    publish(*given)
    if next(calls) == {step}:
        os.kill(os.getpid(), 9)
checkpoints.publish = fatal
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("final")


@pytest.fixture(scope="module")
def whole(place):
    return train(place, "whole", *FINAL)


def steps_kept(run, whole=None):
    """The steps of the checkpoints, oldest first."""
    at = {record["consumed_tokens"]: record["step"] for record in records(whole or run)}
    return [at[int(folder.name.removeprefix("tokens-"))] for folder in reversed(candidates(run / "checkpoints"))]


def test_the_final_ones_are_kept_and_those_between_are_not(whole):
    assert steps_kept(whole) == [4, 6, 8]


@pytest.mark.parametrize("step", [5, pytest.param(7, marks=pytest.mark.slow)])
def test_a_killed_run_keeps_the_same(place, whole, step):
    """Killed after the checkpoint of a step between two final ones, which goes when the next is saved."""
    name = f"killed{step}"
    done = python(*patched(command(place, name, *FINAL), KILL_AFTER.format(step=step))[1:])
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    run = place / "runs" / name
    assert steps_kept(run, whole) == ([4, 5] if step == 5 else [4, 6, 7])
    train(place, name, *FINAL, resume=True)
    assert_same_run(run, whole)
    assert steps_kept(run) == [4, 6, 8]
    for ours, theirs in zip(candidates(run / "checkpoints"), candidates(whole / "checkpoints"), strict=True):
        assert all(torch.equal(tensor, read_weights(theirs)[key]) for key, tensor in read_weights(ours).items())


def test_their_average_is_that_of_every_weight(whole, tmp_path, capsys):
    assert merge([str(whole), "--last", "3", "-o", str(tmp_path / "average")]) == 0
    last = [read_weights(folder) for folder in newest_checkpoints(whole, 3)]
    for name, weight in read_weights(tmp_path / "average").items():
        expected = np.mean([each[name].numpy().astype("f8") for each in last], axis=0)
        np.testing.assert_allclose(weight.numpy(), expected.astype("f4"), rtol=2**-23, atol=0)
        assert not torch.equal(weight, last[0][name])
