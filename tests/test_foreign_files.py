"""Files that are not this run's, or not what was written, are refused at a resume in one line and change nothing."""

import itertools
import json
import os
import shutil
from unittest import mock

import pytest

from lab.core import files
from lab.core.errors import CheckpointError
from lab.core.launch import find_launch
from lab.runs.checkpoints import candidates
from lab.train.run import run_experiment
from lab.train.starting import find_resume
from tests.fits import UNPROBED, load, settings_of, train
from tests.ranks import meet
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


def test_ranks_share_the_hashing_and_all_learn_of_a_fault(place, ranks, run):
    words = [*settings_of(place, run.name), *SHORT, "--train.devices=2"]
    checkpoint = candidates(run / "checkpoints")[0]
    hashed = ranks(2).run(hash_files, words)
    assert sorted(itertools.chain(*hashed)) == sorted(path.name for path in checkpoint.glob("*.safetensors"))
    assert all(hashed), "each rank has hashed a file"
    flipped = checkpoint / "weights-00000.safetensors"
    data = bytearray(flipped.read_bytes())
    data[-5] ^= 1
    flipped.write_bytes(data)
    for line in ranks(2).run(hash_files, words):
        assert line.startswith(f"{flipped}: has SHA-256 ")


def hash_files(words):
    """Find where a run starts as one of the ranks; return the weights that this one has hashed, or the refusal."""
    meet()
    with mock.patch.object(files, "sha256", wraps=files.sha256) as hashing:
        try:
            find_resume(load(*words), find_launch(os.environ, 2, 1), resume=True)
        except CheckpointError as error:
            return str(error)
    hashed = [call.args[0] for call in hashing.call_args_list]
    return [path.name for path in hashed if path.suffix == ".safetensors"]
