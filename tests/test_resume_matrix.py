"""A run goes on under any strategy and number of processes as if nothing had happened."""

import shutil
from pathlib import Path

import pytest

from tests.fits import assert_equal_training, records
from tests.ranks import train

LOSS_TOLERANCE = 1e-5  # sums in another order
LONG = 103  # steps of a run that is saved on four processes at its third step
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
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("matrix")


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


def check(place, ranks, trained, before, after, tied):
    name = f"{before}-{after}-{tied}"
    left_at(trained(before, tied), SAVED, place / "runs" / name)
    ranks(WORLDS[after]).run(train, settings(place, name, after, tied), True)
    run, expected = place / "runs" / name, trained("one", tied)
    assert_equal_training(run, expected, LOSS_TOLERANCE)
    ours, theirs = ({path.name for path in (folder / "checkpoints").iterdir()} for folder in (run, expected))
    assert ours == theirs


def id_of(case):
    return "-".join(map(str, case[:2])) + ("-tied" if case[2] else "")


@pytest.mark.parametrize("case", QUICK, ids=id_of)
def test_a_run_goes_on_under_another_strategy(place, ranks, trained, case):
    check(place, ranks, trained, *case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in ALL if case not in QUICK], ids=id_of)
def test_a_run_goes_on_under_every_strategy(place, ranks, trained, case):
    check(place, ranks, trained, *case)


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 8])
@pytest.mark.parametrize("method", ["ddp", "fsdp"])
def test_a_run_of_four_processes_goes_on_for_100_steps(place, ranks, method, world):
    own = {"train.batch_tokens": 1024, "train.tokens": 1024 * LONG, "train.keep_checkpoints": LONG}
    own["train.checkpoint_every_tokens"] = 2 * 1024 + 1  # first at the third step
    name = f"four-{method}"
    if not (place / "runs" / name).exists():
        ranks(4).run(train, settings(place, name, f"{method}4", False) | own)
    copy = place / "runs" / f"{name}-{world}"
    left_at(place / "runs" / name, SAVED, copy)
    changed = {"train.devices": world, "train.strategy": method if world > 1 else "single"}
    ranks(world).run(train, settings(place, copy.name, f"{method}4", False) | own | changed, True)
    assert_equal_training(copy, place / "runs" / name, LOSS_TOLERANCE)
    assert len(records(copy)) == LONG
