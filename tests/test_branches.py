"""Runs of another length, and branches of a run: bit for bit what a run that is never broken trains."""

import itertools
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import lab
from lab.config.experiment import digest_of_run
from lab.core.errors import CheckpointError, ConfigError
from lab.data.module import PackedData
from lab.loading import open_model
from lab.model.huggingface import save_pretrained
from lab.runs.checkpoints import Checkpoint, candidates
from lab.runs.recovery import read_state
from lab.train import run as training
from lab.train.environment import count_checkpoints
from lab.verify import main as verify
from tests.fits import EXACT, load, probed, read_cases, records, settings_of, train
from tests.refusals import refused
from tests.replay import assert_same_weights

SMALL = (
    *("--train.batch_tokens=512", "--train.micro_batch_tokens=256", "--track.every_steps=3", "--probe.loss_tokens=256"),
    *("--train.checkpoint_every_tokens=1024", "--probe.every_tokens=2048", "--probe.tests=2", "--probe.max_length=128"),
    *("--model.d_model=16", "--model.n_heads=2", "--model.n_kv_heads=2", "--model.d_ff=23"),
)
CONSTANT = (*SMALL, "--optim.schedule=constant")
WSD = (*SMALL, "--optim.schedule=wsd", "--optim.decay_tokens=1500")  # over three steps
SHORT, LONG = "--train.tokens=4096", "--train.tokens=8192"  # of 8 and 16 steps
WAS = "the run was started with"


@pytest.fixture(scope="module")
def runs(place):
    """A constant run that keeps its checkpoints, and one that has decayed at half of its length."""
    train(place, "constant16", *CONSTANT, LONG, "--train.keep_checkpoints=20")
    train(place, "wsd8", *WSD, SHORT)
    return place / "runs"


def lines_of(run, after=0, without=()):
    lines = [line for line in records(run) if line["step"] > after and line["step"] not in without]
    return [[line[key] for key in EXACT] for line in lines]


def steps_of(run):
    """List the steps of a run's checkpoints by their tokens, newest first."""
    saved = [Checkpoint(folder) for folder in candidates(run / "checkpoints")]
    return {checkpoint.consumed_tokens: read_state(checkpoint)["step"] for checkpoint in saved}


def assert_equal_after(run, whole, tokens=0, step=0, extra=()):
    """Compare what two runs record and save after a step and its tokens, but a line and a probe at `extra` steps."""
    assert lines_of(run, without=extra) == lines_of(whole, step) != []
    ends = [line["consumed_tokens"] for line in records(run) if line["step"] in extra]
    ours = [line for line in probed(run) if line["consumed_tokens"] not in ends]
    assert ours == [line for line in probed(whole) if line["consumed_tokens"] > tokens] != []
    theirs = read_cases(whole)
    assert all(theirs.get(name, text) == text for name, text in read_cases(run).items())
    assert_same_weights(run, whole)
    for key in ("f", "lengths", "tokens", "g", "g_unweighted"):
        np.testing.assert_array_equal(*(np.load(path / "counts.npz")[key] for path in (run, whole)))
    assert verify([str(run)]) == 0


def test_a_constant_run_goes_on_as_the_longer_one(runs, place):
    train(place, "constant8", *CONSTANT, SHORT)
    run = train(place, "constant8", *CONSTANT, LONG, resume=True)
    # the first end has a line and a probe of its own, which the means of the next line do not notice
    assert [line["step"] for line in records(run)] == [3, 6, 8, 9, 12, 15, 16]
    assert_equal_after(run, runs / "constant16", extra=(8,))
    kept = list(steps_of(run))
    assert kept == list(steps_of(runs / "constant16"))[: len(kept)]


def test_a_run_that_has_decayed_goes_back_to_where_the_longer_one_does_not(runs, place, capsys):
    run = shutil.copytree(runs / "wsd8", runs / "wsd8-longer")
    before = steps_of(run)
    assert [len(before), min(before.values())] == [3, 5], "the two newest, and the one before the decay"
    assert count_checkpoints(load(*WSD, SHORT)) == 4, "with the one being written"
    train(place, run.name, *WSD, LONG, resume=True)
    whole = train(place, "wsd16", *WSD, LONG)
    assert_equal_after(run, whole)
    assert steps_of(run) == steps_of(whole)
    assert {5, *steps_of(run).values()} >= {13, 16}
    assert max(before) not in steps_of(run), "no checkpoint of the first decay"
    capsys.readouterr()
    train(place, run.name, *WSD, LONG, resume=True)
    assert "already finished" in capsys.readouterr().out


REJECTED = {
    "decayed": ((*WSD, LONG), "train.tokens=8192: no checkpoint before the decay of 1500 is kept"),
    "shorter": ((*WSD, "--train.tokens=3584"), "train.tokens=3584: the run has trained for 8 steps"),
    "decay": ((*WSD[:-1], SHORT, "--optim.decay_tokens=1000"), f"optim.decay_tokens=1000: {WAS} 1500"),
    "cosine": ((*SMALL, LONG), f"optim.decay_tokens=None: {WAS} 1500", f"optim.schedule=cosine: {WAS} wsd"),
    "no end": ((*SMALL, "--optim.schedule=wsd"), "optim.decay_tokens=None: must be set if schedule=wsd"),
    "no use": ((*SMALL, "--optim.decay_tokens=9"), "optim.decay_tokens=9: would be ignored with schedule=cosine"),
    "long": ((*WSD, "--train.tokens=3072"), "optim.decay_tokens=1500: must fit after optim.warmup_steps=4 of 6"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_what_cannot_be_bit_equal_is_a_line(runs, place, case):
    run = runs / "wsd8-decayed"
    if not run.exists():
        shutil.copytree(runs / "wsd8", run)
        shutil.rmtree(candidates(run / "checkpoints")[-1])
    before = steps_of(run)
    options, *rules = REJECTED[case]
    with refused(*rules, error=ConfigError):
        train(place, run.name, *options, resume=True)
    assert steps_of(run) == before


def test_a_branch_is_the_run_that_was_never_broken(runs, place):
    options = [word.replace("checkpoint_every_tokens=1024", "checkpoint_every_tokens=2048") for word in WSD]
    options += ["--start.optimizer=true", f"--start.path={runs / 'constant16'}"]
    run = train(place, "branch8", *options, SHORT)
    tokens = json.loads((run / "environment.json").read_text())["start_tokens"]
    step = steps_of(runs / "constant16")[tokens]
    assert 3 <= step <= 5, "at most a checkpoint earlier than the decay"
    assert_equal_after(run, runs / "wsd8", tokens, step)
    frame = lab.frame([run, runs / "wsd8"])
    for column in ("consumed_tokens", "held_out_loss"):
        assert frame.groupby("run")[column].last().nunique() == 1, "tokens are all those of the weights"
    with refused("train.tokens=3584: no checkpoint before the decay of 1500 is kept", error=ConfigError):
        newest = candidates(runs / "constant16" / "checkpoints")[0]
        train(place, "late", *options[:-1], f"--start.path={newest}", "--train.tokens=3584")


@pytest.mark.parametrize("window", [96, 64])
def test_a_base_with_a_damaged_moment_is_a_line(runs, place, window):
    base = shutil.copytree(runs / "constant16", runs / f"damaged{window}")
    path = candidates(base / "checkpoints")[0] / "optimizer-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    options = (*CONSTANT, "--train.tokens=20480", f"--data.window={window}", f"--start.path={base}")
    with refused(f"{path}: {{}}", error=CheckpointError):
        train(place, f"of_damaged{window}", *options, "--start.optimizer=true")


class Started(Exception):
    pass


@pytest.mark.parametrize("window", [96, 64])
def test_a_branch_begins_with_the_moments_of_its_base(runs, place, monkeypatch, window):
    base = candidates(runs / "constant16" / "checkpoints")[0]
    seen = []

    def begin(parts, state):
        seen.append(state)
        raise Started

    monkeypatch.setattr(training, "train", begin)
    options = (*CONSTANT, "--train.tokens=20480", f"--data.window={window}", f"--start.path={runs / 'constant16'}")
    with pytest.raises(Started):
        train(place, f"begins{window}", *options, "--start.optimizer=true")
    [state] = seen
    weights, moments = (load_file(base / f"{name}-00000.safetensors") for name in ("weights", "optimizer"))
    for name, parameter in state.decoder.named_parameters():
        own = state.inner_optimizer.state[parameter]
        assert torch.equal(parameter, weights[name])
        assert own["step"] == 16, "updates, by which AdamW corrects the bias of the moments"
        assert all(torch.equal(own[m], moments[f"optimizer.{name}.{m}"]) for m in ("exp_avg", "exp_avg_sq"))
    # with another window the run counts from 0, and warms up in 4 steps to its rate of 3e-3
    continues = window == 96
    assert (state.step, state.consumed) == ((16, Checkpoint(base).consumed_tokens) if continues else (0, 0))
    assert [group["lr"] for group in state.optimizer.param_groups] == [3e-3 if continues else 3e-3 / 4] * 2


def test_a_hugging_face_folder_has_no_optimizer(runs, place, tmp_path):
    save_pretrained(open_model(runs / "wsd8").decoder, tmp_path, train_len=96)
    with refused(f"{tmp_path}: holds no checkpoint", error=CheckpointError):
        train(place, "none", *SMALL, SHORT, f"--start.path={tmp_path}", "--start.optimizer=true")


def test_more_tokens_change_no_pack(runs, place):
    packs = []
    for length in (SHORT, LONG):
        data = PackedData(load(*settings_of(place, "packs"), *CONSTANT, length))
        data.setup()
        packs.append([pack.tokens for stream in (0, 1) for pack in itertools.islice(data.stream(stream), 20)])
    assert all(map(np.array_equal, *packs))


def test_digests_of_runs_are_those_of_earlier_versions():
    """The digests are of commit aa0f8ac7, which has none of the new settings."""
    cpu_test = "49fc7c91f93a9f51c1c2e68da7a16264c6f332550d189db80febc38c60e6da05"
    started = "c8702e0cc70c7d79ed2aea8b2ab30056b3923a8e09867f6f6f7dddaaa0b93b03"
    assert digest_of_run(load().to_dict(), "data") == cpu_test
    assert digest_of_run(load("--start.path=a", "--model.vocab_size=600").to_dict(), "data") == started
    for setting in ("weight_decay=0.2", "beta1=0.8", "clip_norm=2.0", "schedule=constant"):
        assert digest_of_run(load(f"--optim.{setting}").to_dict(), "data") != cpu_test
    wsd = [digest_of_run(load(*WSD, length).to_dict(), "data") for length in (SHORT, LONG)]
    assert wsd[0] == wsd[1] != digest_of_run(load(*CONSTANT).to_dict(), "data")
