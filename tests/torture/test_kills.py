"""Runs that are killed at random moments, again and again, end as the one that was left alone, bit for bit."""

import itertools
import random
import signal
import time
from collections import defaultdict

import pytest

from lab.runs.checkpoints import TEMPORARY
from tests.fits import assert_same_run, command, fit
from tests.forked import LIMIT_S
from tests.launching import environment, patched, running, signalled, workers
from tests.replay import assert_same_weights

TWO = ("--train.devices=2",)
VARIANTS = {
    "fp32": (1, ()),
    "bf16": (1, ("--train.precision=bf16",)),
    "ddp": (2, (*TWO, "--train.strategy=ddp")),
    "fsdp": (2, (*TWO, "--train.strategy=fsdp", "--train.async_checkpoints=true")),
}
OPTIONS = ("--train.checkpoint_every_tokens=2048",)
IN_SAVE = 3  # every third kill comes while a save is seen
KILLS, FULL = 1, 25  # for each variant
LEDGER = """
import hashlib
from lab.train import loop
own = loop.compute_loss
def recording(state, batch, **options):
    inputs = batch.inputs
    arrays = [inputs.tokens, inputs.targets, inputs.cu_seqlens, inputs.position_ids]
    digest = hashlib.sha256(b"".join(array.numpy().tobytes() for array in arrays)).hexdigest()
    with open({path!r}, "ab", buffering=0) as ledger:
        ledger.write(f"{{state.consumed}} {{batch.resume.stream}} {{digest}}\\n".encode())
    return own(state, batch, **options)
loop.compute_loss = recording
"""


def commands(place, name, world, *options):
    words = patched(command(place, name, *OPTIONS, *options), LEDGER.format(path=str(place / f"{name}.ledger")))
    if world == 1:
        return [(words, environment())]
    return [(words, variables) for variables in workers(world)]


def run_for(place, name, world, options, wait):
    """Run until `wait` returns, kill all its processes, and return their exit statuses."""
    with running(place, commands(place, name, world, *options)) as processes:
        wait(processes)
        signalled(processes.running(), signal.SIGKILL)
        return processes.finish()[0]


def until(seconds, writing):
    """Wait for a moment, and then for a save to begin if a folder for one is given, or for the end."""

    def wait(processes):
        end = time.monotonic() + seconds
        while time.monotonic() < end or (writing is not None and not writing.exists()):
            if all(process.poll() is not None for process in processes.started):
                return
            time.sleep(0.001)

    return wait


def finished(processes):
    for process in processes.started:
        process.wait(LIMIT_S)


def batches(run):
    """Read what every attempt at a run was trained on: digests by the tokens consumed before, and by stream."""
    found = defaultdict(set)
    for line in (run.parents[1] / f"{run.name}.ledger").read_text().splitlines():
        consumed, stream, digest = line.split()
        found[int(consumed), int(stream)].add(digest)
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(place, torture, record_property, variant):
    world, options = VARIANTS[variant]
    fit(place, "prepares", *OPTIONS, "--resume")
    begin = time.monotonic()
    assert run_for(place, f"{variant}_whole", world, options, finished) == [0] * world
    lasts, chosen = time.monotonic() - begin, random.Random(variant)
    whole, in_save = place / "runs" / f"{variant}_whole", 0
    ledger = batches(whole)
    assert len(ledger) == len({*itertools.chain(*ledger.values())}) == 40, "two packs in each of 20 steps"
    for number in range(kills := torture(KILLS, FULL)):
        run = place / "runs" / f"{variant}{number}"
        writing = run / "checkpoints" / TEMPORARY
        saves = number % IN_SAVE == 0
        moment = until(chosen.uniform(0, lasts * (0.5 if saves else 1)), writing if saves else None)
        run_for(place, run.name, world, options, moment)
        in_save += writing.exists()
        assert run_for(place, run.name, world, (*options, "--resume"), finished) == [0] * world
        assert_same_run(run, whole)
        assert_same_weights(run, whole)
        assert batches(run) == ledger
    record_property("count", kills)
    record_property("note", f"{in_save} of {kills} {variant} inside a save")
