"""A step, a probe or a save fails, mostly on the last rank alone: all ranks go on, or end with one line."""

import errno
import os
from unittest import mock

import pytest
import torch

from lab.runs.checkpoints import candidates, newest
from tests.faults import Fault
from tests.fits import UNPROBED, exact_metrics, records, world_of
from tests.ranks import outcome

STEPS, BAD = 6, 3  # a run's steps, and the one in which something is not finite
OPTIONS = (
    *(f"--train.tokens={512 * STEPS}", "--train.batch_tokens=512", "--train.micro_batch_tokens=256"),
    *("--train.checkpoint_every_tokens=1", f"--train.keep_checkpoints={STEPS}", *UNPROBED),
)
SLOW = pytest.mark.slow


def consumed_at(run):
    return [int(path.name.removeprefix("tokens-")) for path in candidates(run / "checkpoints")]


def nan(loss):
    return loss * torch.nan


def inf(loss):
    return loss * torch.inf


def gradient(loss):
    loss.register_hook(lambda grad: grad * torch.nan)
    return loss


def compare_updates(settings, resume, *faults):
    """Return what came of a run, and whether each update changed a weight or moment."""
    from lab.train import loop

    changes = []

    def copies(state):
        moments = [moment for one in state.inner_optimizer.state.values() for moment in one.values()]
        tensors = [*state.decoder.parameters(), *moments]
        return [(x.to_local() if hasattr(x, "to_local") else x).detach().clone() for x in tensors]

    def comparing(state, own=loop.update):
        before = copies(state)
        own(state)
        after = copies(state)
        changes.append(len(before) != len(after) or any(not x.equal(y) for x, y in zip(before, after)))

    with mock.patch.object(loop, "update", comparing):
        return *outcome(settings, resume, *faults), changes


MORE = [pytest.param(*case, marks=SLOW) for case in (("ddp2", nan), ("ddp2", gradient), ("fsdp2", nan))]


@pytest.mark.parametrize(("part", "event"), [("one", nan), ("ddp2", inf), ("fsdp2", gradient), *MORE])
def test_a_step_that_is_not_finite_ends_all_ranks(place, ranks, part, event):
    world, name = world_of(part), f"{part}_{event.__name__}"
    bad = Fault("lab.model.decoder:Decoder.forward", event, call=BAD * 2 // world, ranks=(world - 1,))
    results = ranks.train(part, place, name, *OPTIONS, faults=(bad,), job=compare_updates)
    assert [(status, changes) for status, _, changes in results] == [(1, [True, True, False])] * world
    (line,), *others = [lines for _, lines, _ in results]
    assert others == [[]] * (world - 1)
    assert line.startswith(f"optim.lr=0.003: step {BAD}, which ends at ")
    assert ("gradient that is not finite" if event is gradient else "loss that is not finite") in line
    run = place / "runs" / name
    lines = records(run)
    assert [(record["skipped_steps"], record["loss"] is None) for record in lines] == [(0, False)] * 2 + [(1, True)]
    assert consumed_at(run)[0] == lines[BAD - 2]["consumed_tokens"], "the last good one"


PROBED = (
    *("--train.tokens=8192", "--train.checkpoint_every_tokens=null", "--train.keep_checkpoints=8"),
    *("--probe.every_tokens=3072", "--probe.tests=2", "--probe.max_length=128", "--probe.distance_tests=2"),
)
OFF = ("--probe.every_tokens=null", "--probe.tests=1", "--probe.loss_tokens=0")
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def garbage_ids(answers):
    return answers * 0 + 2**40


GENERATE = "train.probe:ModelInTraining.generate"
PROBES = {
    "model": ("ddp2", GENERATE, RuntimeError("planted\nat length")),
    "garbage": ("ddp2", GENERATE, garbage_ids),
    "recall": ("ddp2", "probe.recall:RecallTest.scores", ValueError("planted")),
    "fsdp_room": ("fsdp2", "train.probe:Probing.gather_weights", MemoryError("planted")),
    "full_disk": ("one", "runs.folder:RunFolder.write_cases", FULL),
    "loss": ("ddp2", "probe.measuring:HeldOutLoss.sums", ValueError()),
}
NAMES = [pytest.param(name, marks=SLOW if name in ("recall", "loss") else ()) for name in PROBES]


@pytest.mark.parametrize("name", NAMES)
def test_a_probe_that_fails_is_recorded_and_costs_no_step(place, ranks, name):
    part, at, event = PROBES[name]
    off, run = place / "runs" / f"off_{part}", place / "runs" / name
    if not off.exists():
        ranks.train(part, place, off.name, *PROBED, *OFF)
    last = world_of(part) - 1
    fault = Fault(f"lab.{at}", event, ranks=(last,))
    assert ranks.train(part, place, run.name, *PROBED, faults=(fault,)) == [0] * world_of(part)
    assert exact_metrics(run) == exact_metrics(off)
    lines = records(run, "probes.jsonl")
    assert any("effective_length" in line for line in lines)
    if callable(event):
        return
    failed, *whole = lines
    assert failed["failed"].startswith(f"rank {last}: {type(event).__name__}" if last else type(event).__name__)
    assert failed["consumed_tokens"] in consumed_at(run)
    assert failed["consumed_tokens"] not in {record["consumed_tokens"] for record in whole}


def fail_to_save(ranks, part, place, name, *options, faults):
    """Run where a file of a checkpoint cannot be written; return the run, which ends on all ranks in that line."""
    run = place / "runs" / name
    results = ranks.train(part, place, name, *OPTIONS, *options, faults=faults, job=outcome)
    line = f"{run / 'checkpoints'}: no checkpoint could be written ([Errno 28] No space left on device)"
    assert [status for status, _ in results] == [line] * world_of(part)
    return run


@pytest.mark.parametrize("part", ["one", "fsdp2"])
@pytest.mark.parametrize("background", [False, True], ids=["waiting", "background"])
def test_a_save_that_fails_ends_the_run_with_its_reason(place, ranks, part, background):
    third = Fault("lab.runs.shards:write_hashed", FULL, call=9, ranks=(0,))  # a save writes four files on rank 0
    options = (f"--train.async_checkpoints={background}",)
    run = fail_to_save(ranks, part, place, f"full_{part}_{background}", *options, faults=(third,))
    steps = [record["consumed_tokens"] for record in records(run)]
    assert newest(run / "checkpoints").consumed_tokens == steps[1]
    assert len(steps) == (4 if background else 3), "no later than the next save"


@pytest.mark.parametrize(("part", "probes"), [("one", False), ("fsdp2", False), ("fsdp2", True)])
def test_a_background_save_that_fails_is_noticed_before_the_next(place, ranks, part, probes):
    """The last rank alone fails; its error ends all ranks in the next steps, or in the probe after the save."""
    world, every = world_of(part), 512 * 4
    options = (f"--train.tokens={512 * 60}", "--train.async_checkpoints=true", "--probe.tests=20")
    if probes:
        options += ("--train.checkpoint_every_tokens=null", f"--probe.every_tokens={every}")
    else:
        options += (f"--train.checkpoint_every_tokens={every}",)
    # Steps are slow from the save on, as its thread may start some steps later.
    slow = Fault("lab.train.loop:compute_loss", 0.2, call=4 * 2 // world + 1, stays=True)
    first = Fault("lab.runs.shards:write_hashed", FULL, ranks=(world - 1,))
    run = fail_to_save(ranks, part, place, f"noticed_{part}_{probes}", *options, faults=(first, slow))
    assert 4 <= len(records(run)) < 8, "the save is at step 4 or 5, and the next one at 8"
    assert not candidates(run / "checkpoints")
