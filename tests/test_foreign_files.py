"""Files that are not this run's, or not what was written, are refused at a resume in one line and change nothing."""

import json
import shutil

import pytest

from lab.core.errors import CheckpointError
from lab.runs.checkpoints import candidates
from lab.train.run import run_experiment
from tests.fits import UNPROBED, load, settings_of, train
from tests.refusals import refused

SHORT = (*UNPROBED, "--train.tokens=6144", "--train.checkpoint_every_tokens=2048")


@pytest.fixture(scope="module")
def whole(place):
    return train(place, "whole", *SHORT)


@pytest.fixture
def run(whole, request):
    return shutil.copytree(whole, whole.with_name(request.node.name.replace("[", "-").rstrip("]")))


def resume(place, run):
    return run_experiment(load(*settings_of(place, run.name), *SHORT), True, "again")


@pytest.mark.parametrize("setting", ["run.seed", "data.corpus.seed"])
def test_a_checkpoint_of_another_run_is_refused(place, run, setting):
    other = train(place, f"other-{setting}", *SHORT, f"--{setting}=7")
    mine, foreign = (candidates(folder / "checkpoints")[0] for folder in (run, other))
    shutil.rmtree(mine)
    place_of = shutil.copytree(foreign, mine.with_name(foreign.name))
    with refused(f"{place_of}/manifest.json: is a checkpoint of run ", error=CheckpointError):
        resume(place, run)


def test_runs_that_differ_in_nothing_that_training_depends_on_share_checkpoints(place, run):
    other = train(place, "same", *SHORT, "--track.every_steps=1", "--train.compile=false")
    ours, theirs = (json.loads((folder / "manifest.json").read_text())["run"] for folder in (run, other))
    assert ours == theirs
    assert resume(place, run) == 0
