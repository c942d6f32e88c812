"""Strategies, numbers of processes and ranks that share packs train alike, and a run goes on under any of them."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from lab.core.command import parse_overrides
from tests.fits import assert_equal_training, command, cut_after, records, settings_of
from tests.fits import train as train_alone
from tests.launching import running, workers
from tests.ranks import train

TOLERANCE, NORM_TOLERANCE = 1e-5, 1e-4  # of losses, and of gradient norms: sums in another order
STEPS, SAVED = 6, 3  # saved at an odd step
WORLDS = {"one": 1, "fsdp1": 1, "ddp2": 2, "fsdp2": 2, "ddp4": 4, "fsdp4": 4}
SIZES = {"d_model": 16, "n_heads": 2, "n_kv_heads": 1, "d_ff": 23}  # rows that four ranks cannot share out evenly
SETTINGS = {
    "train.tokens": 512 * STEPS,
    "train.batch_tokens": 512,
    "train.micro_batch_tokens": 128,
    "train.checkpoint_every_tokens": 1,  # at every step
    "train.keep_checkpoints": STEPS,
    "probe.every_tokens": None,
    "probe.tests": 2,
    "probe.max_length": 128,
    "probe.loss_tokens": 256,
    **{f"model.{name}": size for name, size in SIZES.items()},
}
QUICK = [("ddp2", "one", True), ("one", "fsdp1", True), ("fsdp2", "ddp2", False), ("fsdp1", "fsdp2", False)]
ALL = [(a, b, tied) for tied in (False, True) for a in WORLDS for b in WORLDS]
JOINED = ("--data.mode=concatenated",)
SHORT = ("--train.tokens=6144", "--train.checkpoint_every_tokens=2048", "--train.keep_checkpoints=9")
METHODS = {
    "plain": (),
    "anchor": (*JOINED, "--mask.method=anchor"),
    "weights": ("--weights.by=evidence", "--weights.keep=[[0,30]]"),
    "pose": ("--skip.method=pose", "--skip.target_len=240"),
    "longrecipe": ("--skip.method=longrecipe", "--skip.target_len=240"),
    "string": ("--position.distance.method=string", "--position.distance.shift=32", "--position.distance.window=8"),
}


def settings(folder, name, strategy, tied):
    return SETTINGS | {
        "run.folder": str(folder / "runs"),
        "run.name": name,
        "data.folder": str(folder / "shards"),
        "train.strategy": {"one": "single"}.get(strategy, strategy[:-1]),
        "train.devices": WORLDS[strategy],
        "model.tie_embeddings": tied,
    }


@pytest.fixture(scope="module")
def trained(place, ranks):
    """Train under a strategy without a stop, once."""
    runs: dict[tuple[str, bool], Path] = {}

    def of(strategy, tied):
        if (strategy, tied) not in runs:
            name = f"{strategy}-{tied}"
            ranks(WORLDS[strategy]).run(train, settings(place, name, strategy, tied))
            runs[strategy, tied] = place / "runs" / name
        return runs[strategy, tied]

    return of


def left_at(run, step, copy):
    """Copy a run as it was after a step's checkpoint."""
    shutil.copytree(run, copy)
    consumed = [record["consumed_tokens"] for record in records(run)][step - 1]
    for folder in (copy / "checkpoints").iterdir():
        if int(folder.name.removeprefix("tokens-")) > consumed:
            shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("before", "after", "tied"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in QUICK)],
)
def test_a_run_goes_on_under_another_strategy(place, ranks, trained, before, after, tied):
    name = f"{before}-{after}-{tied}"
    left_at(trained(before, tied), SAVED, place / "runs" / name)
    ranks(WORLDS[after]).run(train, settings(place, name, after, tied), True)
    assert_equal_training(place / "runs" / name, trained("one", tied), TOLERANCE)


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_the_workers_of_torchrun_train_on_two_devices_as_on_one(place, strategy):
    alone = place / "runs" / "alone"
    if not alone.exists():
        train_alone(place, "alone", *SHORT)
    options = (*SHORT, f"--train.strategy={strategy}", "--train.devices=2")
    with running(place, [(command(place, strategy, *options), variables) for variables in workers(2)]) as processes:
        statuses, outputs = processes.finish()
    assert statuses == [0, 0], outputs
    assert_equal_training(place / "runs" / strategy, alone, TOLERANCE)


def share(ranks, place, name, *options, world=2, resume=False):
    """Train on so many ranks, of which two at a time share each pack."""
    words = (*settings_of(place, name), "--train.context_parallel=2", f"--train.devices={world}", *options)
    assert ranks(world).run(train, parse_overrides(words), resume) == [0] * world
    return place / "runs" / name


@pytest.mark.parametrize(
    ("method", "strategy", "world"),
    [
        ("plain", "ddp", 2),
        ("anchor", "fsdp", 2),
        *(pytest.param(m, s, w, marks=pytest.mark.slow) for m in METHODS for s, w in (("fsdp", 2), ("ddp", 4))),
    ],
)
def test_ranks_that_share_packs_train_as_one(ranks, place, method, strategy, world):
    one = place / "runs" / f"context-{method}"
    if not one.exists():
        train_alone(place, one.name, *SHORT, *METHODS[method])
    name = f"{method}_{strategy}_{world}_{len([*one.parent.iterdir()])}"
    run = share(ranks, place, name, *SHORT, *METHODS[method], f"--train.strategy={strategy}", world=world)
    assert_equal_training(run, one, TOLERANCE)
    norms, theirs = ([record["grad_norm"] for record in records(path)] for path in (run, one))
    np.testing.assert_allclose(norms, theirs, rtol=NORM_TOLERANCE)
    if method == "plain":
        alone = cut_after(run, place / "runs" / f"{name}-alone")
        train_alone(place, alone.name, *SHORT, resume=True)
        assert_equal_training(alone, one, TOLERANCE)
