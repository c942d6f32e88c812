"""Runs that are stopped three times or more, by kills and signals, each part on other processes, train on one data."""

import random
import signal
import time

import numpy as np
import pytest

from lab.runs.checkpoints import MANIFEST
from lab.verify import main as verify
from tests.fits import assert_equal_training, fit
from tests.launching import running, signalled
from tests.torture.test_kills import OPTIONS, batches, commands, finished, until

STEPS = 40
PACKS = (
    *("--train.batch_tokens=2048", "--train.micro_batch_tokens=512", f"--train.tokens={2048 * STEPS}"),
    *("--train.keep_checkpoints=3", "--track.every_steps=1", "--probe.every_tokens=20480"),
)
KINDS = {  # of what the packs are made of
    "plain": (),
    "anchor": ("--data.mode=concatenated", "--mask.method=anchor"),
    "selected": ("--skip.method=longrecipe", "--skip.target_len=240"),
    "evidence": ("--weights.by=evidence", "--weights.keep=[[0,16]]"),
}
PARTS = {
    "one": (1, ()),
    "ddp2": (2, ("--train.strategy=ddp",)),
    "fsdp2": (2, ("--train.strategy=fsdp",)),
    "background2": (2, ("--train.strategy=fsdp", "--train.async_checkpoints=true")),
    "shared2": (2, ("--train.context_parallel=2",)),
    "ddp4": (4, ("--train.strategy=ddp",)),
    "shared4": (4, ("--train.context_parallel=2", "--train.strategy=fsdp")),
}
STOPS = 3  # and one more in every third chain
STARTING = 0.2  # share of the stops that come at any moment of a start
SENT, FULL = 1, 30
TOLERANCE = 1e-6


def stopped(place, name, part, options, wait, number):
    """Run a part until `wait` returns, send a signal to all its processes, and return their exit statuses."""
    world, more = PARTS[part]
    words = (*options, *more, f"--train.devices={world}", "--resume")
    with running(place, commands(place, name, world, *words)) as processes:
        wait(processes)
        if number is not None:
            signalled(processes.running(), number)
        return processes.finish()[0]


def after(run, more, seconds):
    """Wait until so many more steps are recorded, and some seconds, or for the end."""
    metrics = run / "metrics.jsonl"
    steps = lambda: len(metrics.read_bytes().splitlines()) if metrics.exists() else 0  # noqa: E731
    before = steps()  # a resume takes back those after its checkpoint

    def wait(processes):
        while steps() < before + more and any(process.poll() is None for process in processes.started):
            time.sleep(0.01)
        time.sleep(seconds)

    return wait


@pytest.fixture(scope="module")
def whole(place):
    """Train without a stop, once for each kind; return the run and its batches."""
    runs = {}

    def of(kind):
        if kind not in runs:
            fit(place, f"prepares-{kind}", *OPTIONS, *PACKS, *KINDS[kind])
            assert stopped(place, f"whole-{kind}", "one", (*PACKS, *KINDS[kind]), finished, None) == [0]
            run = place / "runs" / f"whole-{kind}"
            runs[kind] = run, batches(run)
        return runs[kind]

    return of


def test_a_run_stopped_again_and_again_is_the_run_that_was_not(place, whole, torture, record_property):
    chosen, ends = random.Random(40), []
    for number in range(chains := torture(SENT, FULL)):
        kind, name = list(KINDS)[number % len(KINDS)], f"chain{number}"
        one, ledger = whole(kind)
        run = place / "runs" / name
        for _ in range(STOPS + (number % 3 == 0)):
            part, sent = chosen.choice(list(PARTS)), chosen.choice([signal.SIGKILL, signal.SIGTERM])
            if chosen.random() < STARTING:
                moment = until(chosen.uniform(0, 4), None)
            else:
                more = chosen.randint(2, STEPS // (STOPS + 2))
                moment = after(run, more, chosen.uniform(0, 0.3))
            statuses = stopped(place, name, part, (*PACKS, *KINDS[kind]), moment, sent)
            lost = {1} if sent == signal.SIGKILL else set()  # of a rank that sees another one killed before itself
            assert {*statuses} <= {0, 75, -sent} | lost, f"{name} on {part}, {sent.name}: {statuses}"
            ends += [f"{part} {statuses[0]}"]
            assert not (run / MANIFEST).exists() or verify([str(run)]) == 0, f"{name} after {ends[-1]}"
        last = chosen.choice(list(PARTS))
        assert {*stopped(place, name, last, (*PACKS, *KINDS[kind]), finished, None)} == {0}
        assert batches(run) == ledger, name
        assert_equal_training(run, one, TOLERANCE)
        np.testing.assert_array_equal(*(np.load(path / "counts.npz")["g"] for path in (run, one)))
        assert verify([str(run)]) == 0
    record_property("count", chains)
    record_property("note", f"{len(ends)} stops, {sum(not end.endswith(' 0') for end in ends)} of them before the end")
