"""Ranks that share each pack train as one process: the same losses, gradient norms, counts, probes, checkpoints."""

import numpy as np
import pytest

from lab.settings import parse_overrides
from tests.fits import UNPROBED, assert_equal_training, cut_after, load, records, settings_of
from tests.fits import train as train_alone
from tests.ranks import train
from tests.refusals import refused

LOSS_TOLERANCE = 1e-5  # sums in another order
NORM_TOLERANCE = 1e-4  # of the gradient, relative
DEGREE = "--train.context_parallel=2"
JOINED = ("--data.mode=concatenated",)
PROBED = ("--train.tokens=10240", "--train.checkpoint_every_tokens=4096", "--train.keep_checkpoints=9")
SHORT = (*UNPROBED, "--train.tokens=6144", "--train.checkpoint_every_tokens=2048", "--train.keep_checkpoints=9")
METHODS = {
    "anchor": (*JOINED, "--mask.method=anchor"),
    "weights": ("--shape.strategy.method=weights", "--shape.target.exponent=0.7"),
    "document": (*JOINED, "--mask.method=document", "--mask.ids=running"),
    "pose": ("--skip.method=pose", "--skip.target_len=240"),
    "longrecipe": ("--skip.method=longrecipe", "--skip.target_len=240"),
    "string": ("--position.distance.method=string", "--position.distance.shift=32", "--position.distance.window=8"),
    "yarn": ("--position.frequency.method=yarn", "--position.frequency.factor=4", "--position.frequency.train_len=96"),
}
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("context")


@pytest.fixture(scope="module")
def alone(place):
    return train_alone(place, "alone", *PROBED)


@pytest.fixture(scope="module")
def shared(ranks, place):
    return share(ranks, place, "shared", *PROBED)


def share(ranks, place, name, *options, world=2, resume=False):
    """Train on so many ranks, in groups of two."""
    words = (*settings_of(place, name), DEGREE, f"--train.devices={world}", *options)
    assert ranks(world).run(train, parse_overrides(words), resume) == [0] * world
    return place / "runs" / name


def assert_as_one(run, other):
    assert_equal_training(run, other, LOSS_TOLERANCE)
    norms, theirs = ([record["grad_norm"] for record in records(path)] for path in (run, other))
    np.testing.assert_allclose(norms, theirs, rtol=NORM_TOLERANCE)
    ours, expected = np.load(run / "counts.npz"), np.load(other / "counts.npz")
    assert ours.files == expected.files
    for name in ours.files:
        np.testing.assert_array_equal(ours[name], expected[name])


def test_two_ranks_train_as_one_with_probes(shared, alone):
    assert_as_one(shared, alone)


@pytest.mark.parametrize("shares_first", [True, False], ids=["2 to 1", "1 to 2"])
def test_a_run_goes_on_with_another_degree(ranks, place, alone, shared, shares_first):
    copy = cut_after(shared if shares_first else alone, place / "runs" / f"moved_{shares_first}")
    if shares_first:
        train_alone(place, copy.name, *PROBED, resume=True)
    else:
        share(ranks, place, copy.name, *PROBED, resume=True)
    assert_as_one(copy, alone)


@pytest.mark.parametrize(
    ("method", "strategy", "world"),
    [
        ("anchor", "fsdp", 2),
        ("weights", "ddp", 2),
        *(pytest.param(method, "fsdp", 2, marks=SLOW) for method in METHODS),
        *(pytest.param(method, strategy, 4, marks=SLOW) for method in METHODS for strategy in ("ddp", "fsdp")),
    ],
)
def test_every_method_trains_as_one(ranks, place, method, strategy, world):
    options = (*SHORT, *METHODS[method])
    one = place / "runs" / method
    if not one.exists():
        train_alone(place, method, *options)
    strategies = (f"--train.strategy={strategy}", f"--train.recompute={str(world == 4).lower()}")
    run = share(ranks, place, f"{method}_{strategy}_{world}", *options, *strategies, world=world)
    assert_as_one(run, one)


REFUSED = {
    "heads": (
        ["--train.context_parallel=4", "--train.devices=4"],
        "train.context_parallel=4: must divide the 2 key-value heads (model.n_kv_heads)",
    ),
    "window": (
        [DEGREE, "--train.devices=2", "--data.window=95"],
        "train.context_parallel=2: must divide the 95 tokens of data.window",
    ),
    "pack": (
        [DEGREE, "--train.devices=2", "--train.micro_batch_tokens=509", "--train.batch_tokens=1018"],
        "train.context_parallel=2: must divide the 509 tokens of train.micro_batch_tokens",
    ),
    "processes": ([DEGREE, "--train.devices=3"], "train.context_parallel=2: must divide devices * nodes, 3 processes"),
    "one_process": ([DEGREE], "train.context_parallel=2: must divide devices * nodes, 1 processes"),
    "packs": (
        [DEGREE, "--train.devices=6"],
        "train.batch_tokens=1024: its 2 packs must divide evenly among 3 {} / context_parallel",
    ),
    "none": (["--train.context_parallel=0"], "train.context_parallel=0: must be >= 1"),
}


@pytest.mark.parametrize(("options", "fault"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_divided_is_refused(options, fault):
    with refused(fault):
        load(*options)
