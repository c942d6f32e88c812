"""Runs that are stopped at random moments, once or again and again, end as the one that was left alone."""

import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from lab.runs.checkpoints import MANIFEST, TEMPORARY
from lab.verify import main as verify
from tests.faults import Ledger, planted
from tests.fits import assert_equal_training, assert_same_run, command, options_of, world_of
from tests.launching import copy, environment, interpreter, running, signalled, workers
from tests.replay import assert_same_weights

KILL, TERM = (signal.SIGKILL,), (signal.SIGKILL, signal.SIGTERM)
STEPS = (20, 40)  # of a run that is stopped once, and of a chain
PACKS = (
    *("--train.batch_tokens=2048", "--train.micro_batch_tokens=512", f"--train.tokens={2048 * STEPS[1]}"),
    *("--train.keep_checkpoints=3", "--probe.every_tokens=20480"),
)
PARTS = ("one", "ddp2", "fsdp2", "background2", "shared2", "ddp4", "shared_fsdp4")
JOINED, SELECTED = ("--data.mode=concatenated",), ("--skip.method=longrecipe", "--skip.target_len=240")
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Case:
    """On which processes a run is trained, one after the other, what stops it, and how often it is tried."""

    parts: tuple[str, ...]
    options: tuple[str, ...] = ()
    sent: tuple[signal.Signals, ...] = KILL
    stops: int = 1
    counts: tuple[int, int] = (1, 25)
    start: Callable = copy


CASES = {
    "fp32": Case(("one",)),
    "bf16": Case(("one",), ("--train.precision=bf16",)),
    "ddp": Case(("ddp2",)),
    "fsdp": Case(("background2",)),
    "signals": Case(("one",), sent=(signal.SIGTERM, signal.SIGINT, signal.SIGUSR1), counts=(2, 50), start=interpreter),
    "plain_chain": Case(PARTS, PACKS, TERM, 3, (1, 8)),
    "anchor_chain": Case(PARTS, (*PACKS, *JOINED, "--mask.method=anchor"), TERM, 4, (0, 7)),
    "selected_chain": Case(PARTS, (*PACKS, *SELECTED), TERM, 3, (0, 8)),
    "evidence_chain": Case(PARTS, (*PACKS, "--weights.by=evidence", "--weights.keep=[[0,16]]"), TERM, 3, (0, 7)),
}


def ledger_of(place, name):
    return Ledger(str(place / f"{name}.ledger"))


def run_until(place, name, part, options, wait, number=None, start=copy):
    """Run until `wait` returns, send a signal to all processes; return their exit statuses and their output."""
    options = ("--train.checkpoint_every_tokens=2048", *options, *options_of(part), "--resume")
    words = command(place, name, *options)
    if start is copy:  # an interpreter gets signals while it starts, in which nothing else may run
        words = planted(words, ledger_of(place, name))
    variables = workers(world_of(part)) if world_of(part) > 1 else [environment()]
    with running(place, [(words, own) for own in variables], start) as processes:
        wait(processes)
        if number is not None:
            signalled(processes.running(), number)
        statuses, outputs = processes.finish()
        assert number == signal.SIGKILL or processes.left() == []
    return {*statuses}, "".join(outputs)


def end(processes):
    for process in processes.started:
        process.wait()


def steps_of(run):
    metrics = run / "metrics.jsonl"
    return len(metrics.read_bytes().splitlines()) if metrics.exists() else 0


def random_moment(chosen, run, steps):
    """Choose a moment of a start, one in which a save is seen, or one some steps later; wait no longer than the end."""
    which, seconds, more = chosen.random(), chosen.uniform(0, 4), chosen.randint(0, steps)
    before, writing = steps_of(run), run / "checkpoints" / TEMPORARY  # a resume takes back steps after its checkpoint

    def is_reached(begin):
        if which < 0.2:
            return time.monotonic() > begin + seconds
        return writing.exists() if which < 0.5 else steps_of(run) >= before + more

    def wait(processes):
        begin = time.monotonic()
        while not is_reached(begin) and any(process.poll() is None for process in processes.started):
            time.sleep(0.001)
        time.sleep(0 if which < 0.5 else seconds / 12)

    return wait


@pytest.mark.parametrize("name", CASES)
def test_a_run_stopped_at_random_moments_is_the_one_left_alone(place, torture, record_property, name):
    case, chosen, ends, in_save = CASES[name], random.Random(name), Counter(), 0
    whole, packs, is_chain = place / "runs" / name, ledger_of(place, name), case.stops > 1
    assert run_until(place, name, case.parts[0], case.options, end)[0] == {0}
    assert len(packs.read()) == len({*itertools.chain(*packs.read().values())}) == (160 if is_chain else 40)
    for number in range(times := torture(*case.counts)):
        run = place / "runs" / f"{name}{number}"
        for _ in range(case.stops):
            part, sent, before = chosen.choice(case.parts), chosen.choice(case.sent), steps_of(run)
            moment = random_moment(chosen, run, STEPS[is_chain] // (case.stops + 1))
            statuses, output = run_until(place, run.name, part, case.options, moment, sent, case.start)
            in_save += (run / "checkpoints" / TEMPORARY).exists()
            lost = {1} if sent == signal.SIGKILL else set()  # of a rank that sees another one killed before itself
            assert statuses <= {0, 75, -sent} | lost, f"{run} on {part}, {sent.name}: {statuses}: {output[-2000:]}"
            assert sent == signal.SIGKILL or -sent not in statuses or steps_of(run) <= before, "ended without a save"
            assert case.start is copy or "Traceback" not in output, output
            assert not (run / MANIFEST).exists() or verify([str(run)]) == 0, f"{run} on {part} after {statuses}"
            ends[min(statuses)] += 1
        statuses, output = run_until(place, run.name, chosen.choice(case.parts), case.options, end)
        assert statuses == {0}, f"{run}: {statuses}: {output[-2000:]}"
        assert case.start is interpreter or ledger_of(place, run.name).read() == packs.read()
        if is_chain:
            assert_equal_training(run, whole, TOLERANCE)
            np.testing.assert_array_equal(*(np.load(path / "counts.npz")["g"] for path in (run, whole)))
        else:
            assert_same_run(run, whole)
            assert_same_weights(run, whole)
        assert verify([str(run)]) == 0
    record_property("count", times * case.stops)
    record_property("note", f"{name}: {in_save} inside a save, by status {dict(sorted(ends.items()))}")
