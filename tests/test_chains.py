"""A run that is stopped again and again, on other processes each time, trains on the tokens of one that is not."""

import os
import signal
from collections import defaultdict
from functools import wraps
from unittest.mock import patch
from zlib import crc32

import numpy as np
import pytest

from lab.core.command import parse_overrides
from lab.verify import main as verify
from tests.fits import assert_equal_training, settings_of
from tests.ranks import train

OPTIONS = (
    *("--train.tokens=12288", "--train.batch_tokens=1024", "--train.micro_batch_tokens=256"),
    *("--train.checkpoint_every_tokens=4096", "--probe.tests=1", "--probe.max_length=128", "--probe.every_tokens=8192"),
)
TOLERANCE = 1e-6  # of losses: sums in another order
PARTS = {"one": (1, ()), "ddp2": (2, ()), "fsdp2": (2, ("--train.strategy=fsdp",))}
PARTS |= {"shared2": (2, ("--train.context_parallel=2",)), "ddp4": (4, ()), "fsdp4": (4, ("--train.strategy=fsdp",))}
PARTS["shared4"] = (4, ("--train.context_parallel=2",))
QUICK = {
    "same": [("ddp2", 3), ("ddp2", 6), ("ddp2", 9), ("ddp2", None)],
    "changing": [("ddp2", 2), ("fsdp2", 5), ("shared2", 8), ("one", None)],
}
MORE = {
    "fsdp": [("fsdp2", 3), ("fsdp2", 5), ("fsdp2", 6), ("fsdp2", None)],
    "shared": [("shared2", 1), ("shared2", 2), ("shared2", 7), ("shared2", None)],
    "four": [("ddp4", 2), ("shared4", 4), ("fsdp4", 7), ("ddp2", 9), ("fsdp4", None)],
}


def settings(place, name, *options):
    return parse_overrides((*settings_of(place, name), *OPTIONS, *options))


def recorded(step, ledger, stop, *, first, last):
    """Write down the pack of every call that computes a loss; the last rank asks itself to stop after a step."""

    @wraps(step)
    def recording(state, batch, **options):
        if first:
            tokens = crc32(batch.inputs.tokens.numpy().tobytes() + batch.inputs.position_ids.numpy().tobytes())
            with open(ledger, "a") as file:
                file.write(f"{state.step} {batch.resume.stream} {tokens}\n")
        if state.step + 1 == stop and last:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(state, batch, **options)

    return recording


def train_part(settings, resume, ledger, stop):
    """Train one part as one of the ranks, and return the exit status."""
    from lab.train import loop

    rank, world = int(os.environ.get("RANK", "0")), settings.get("train.devices", 1)
    first = rank % settings.get("train.context_parallel", 1) == 0
    recording = recorded(loop.compute_loss, ledger, stop, first=first, last=rank == world - 1)
    with patch.object(loop, "compute_loss", recording):
        return train(settings, resume)


def packs(ledger):
    """Read what every stream gave to every step; all attempts at a step must have given the same."""
    found = defaultdict(set)
    for line in ledger.read_text().splitlines():
        step, stream, tokens = line.split()
        found[int(step), int(stream)].add(tokens)
    assert all(len(one) == 1 for one in found.values()), "a step was trained on other tokens after a resume"
    return found


@pytest.mark.parametrize("chain", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_a_chain_of_stops_changes_no_token(place, ranks, chain):
    whole, ledgers = place / "runs" / "whole", {name: place / f"{name}.ledger" for name in ("whole", chain)}
    if not whole.exists():
        assert ranks(1).run(train_part, settings(place, whole.name), False, ledgers["whole"], None) == [0]
    for number, (part, stop) in enumerate((QUICK | MORE)[chain]):
        world, options = PARTS[part]
        words = settings(place, chain, *options, f"--train.devices={world}")
        statuses = ranks(world).run(train_part, words, number > 0, ledgers[chain], stop)
        assert statuses == [75 if stop else 0] * world
    run = place / "runs" / chain
    assert packs(ledgers[chain]) == packs(ledgers["whole"])
    assert_equal_training(run, whole, TOLERANCE)
    np.testing.assert_array_equal(*(np.load(path / "counts.npz")["g"] for path in (run, whole)))
    assert verify([str(run)]) == 0
