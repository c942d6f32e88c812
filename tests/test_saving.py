"""Saving in runs: in the background as in the foreground, killed anywhere, verified by one rank alone."""

import errno
import io
import os
import signal
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from unittest.mock import MagicMock, patch

import pytest
import torch

from lab.core.errors import LabError
from lab.core.files import sha256
from lab.runs.checkpoints import candidates, folder_name, newest
from lab.runs.shards import ShardWriter, packed, publish, write_shards
from tests.fits import NO_PROBES, exact_metrics, folders_of, records
from tests.ranks import train

STEPS = 6
SETTINGS = {
    "train.tokens": 512 * STEPS,
    "train.batch_tokens": 512,
    "train.micro_batch_tokens": 256,
    "train.checkpoint_every_tokens": 1,  # at every step
    "train.keep_checkpoints": STEPS,
    **NO_PROBES,
}
FSDP = {"train.devices": 2, "train.strategy": "fsdp"}


def settings(place, name, **others):
    return SETTINGS | folders_of(place, name) | others


@pytest.fixture(scope="module")
def waiting(place, ranks):
    """One process and two sharded ones that wait for every save."""
    ranks(1).run(train, settings(place, "one"))
    ranks(2).run(train, settings(place, "two", **FSDP))
    return {1: place / "one", 2: place / "two"}


@pytest.mark.parametrize("world", [1, 2])
def test_checkpoints_in_the_background_hold_the_same_tensors(place, ranks, waiting, world):
    name = f"background{world}"
    ranks(world).run(train, settings(place, name, **({} if world == 1 else FSDP), **{"train.async_checkpoints": True}))
    assert exact_metrics(place / name) == exact_metrics(waiting[world])
    ours, theirs = candidates(place / name / "checkpoints"), candidates(waiting[world] / "checkpoints")
    assert [folder.name for folder in ours] == [folder.name for folder in theirs]
    for mine, other in zip(ours, theirs):
        assert [path.name for path in sorted(mine.iterdir())] == [path.name for path in sorted(other.iterdir())]
        assert all(sha256(path) == sha256(other / path.name) for path in mine.glob("*.safetensors"))
    assert not (place / name / "checkpoints" / ".writing").exists()


def train_on_a_full_disk(settings, number=3, file="weights-00000.safetensors", pause_s=0):
    """Train where one file of the n-th save cannot be written, with a pause at later steps; return the error."""
    from lab.core.errors import CheckpointError
    from lab.runs import shards
    from lab.train import checkpoint, loop

    write, written, step = shards.write_hashed, [], loop.compute_loss
    save, saves = checkpoint.write_shards, []

    def counted(*arguments, **options):
        saves.append(arguments)
        return save(*arguments, **options)

    def full(path, parts):
        written.append(path.name)
        if written.count(file) == number:
            raise OSError(28, "No space left on device")
        return write(path, parts)

    def slow(*arguments, **options):
        time.sleep(pause_s if saves else 0)  # not from the write on: its thread may start some steps later
        return step(*arguments, **options)

    shards.write_hashed, loop.compute_loss, checkpoint.write_shards = full, slow, counted
    try:
        return str(train(settings))
    except CheckpointError as error:
        return str(error)
    finally:
        shards.write_hashed, loop.compute_loss, checkpoint.write_shards = write, step, save


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("background", [False, True], ids=["waiting", "background"])
def test_a_save_that_fails_ends_the_run_with_its_reason(place, ranks, world, background):
    name = f"full{world}{background}"
    own = settings(place, name, **({} if world == 1 else FSDP), **{"train.async_checkpoints": background})
    told = ranks(world).run(train_on_a_full_disk, own)
    assert (
        told
        == [f"{place / name / 'checkpoints'}: no checkpoint could be written ([Errno 28] No space left on device)"]
        * world
    )
    steps = [record["consumed_tokens"] for record in records(place / name)]
    assert newest(place / name / "checkpoints").consumed_tokens == steps[1]
    assert len(steps) == (4 if background else 3), "no later than the next save"


@pytest.mark.parametrize(("world", "probes"), [(1, False), (2, False), (2, True)])
def test_a_background_save_that_fails_is_noticed_before_the_next(place, ranks, world, probes):
    """The last rank alone fails; its error ends all ranks in the next steps, or in the probe after the save."""
    name, steps = f"noticed{world}{probes}", 60
    own = settings(place, name, **({} if world == 1 else FSDP), **{"train.async_checkpoints": True})
    own |= {"train.tokens": 512 * steps, "train.checkpoint_every_tokens": 512 * 4}
    if probes:
        own |= {"train.checkpoint_every_tokens": None, "probe.every_tokens": 512 * 4, "probe.tests": 20}
    file = f"weights-0000{world - 1}.safetensors"
    told = ranks(world).run(train_on_a_full_disk, own, 1, file, 0.2)
    fault = "no checkpoint could be written ([Errno 28] No space left on device)"
    assert told == [f"{place / name / 'checkpoints'}: {fault}"] * world
    assert 4 <= len(records(place / name)) < 8, "the save is at step 4 or 5, and the next one at 8"
    assert not candidates(place / name / "checkpoints")


def train_with_slow_writing(settings):
    """Write no weights before a probe has ended, or 200 seconds have passed; return whether they did."""
    from lab.runs import shards
    from lab.train import probe

    write, run, ended, waited = shards.write_hashed, probe.Probing.run, threading.Event(), []

    def slow(path, parts):
        if path.name.startswith("weights-"):
            waited.append(not ended.wait(200))
        return write(path, parts)

    def ending(*arguments):
        run(*arguments)
        ended.set()

    with patch.object(shards, "write_hashed", slow), patch.object(probe.Probing, "run", ending):
        assert train(settings) == 0
    return waited


@pytest.mark.parametrize(("world", "due"), [(1, True), (2, False)], ids=["due", "of_the_probe"])
def test_a_probe_waits_for_no_save_in_the_background(place, ranks, world, due):
    every = {"train.checkpoint_every_tokens": 512 * (STEPS - 1) if due else None, "train.async_checkpoints": True}
    own = settings(place, f"slow{world}{due}", **({} if world == 1 else FSDP), **every)
    assert ranks(world).run(train_with_slow_writing, own) == [[False]] * world
    run = place / f"slow{world}{due}"
    (saved,) = candidates(run / "checkpoints")
    assert saved.name == folder_name(records(run)[-1]["consumed_tokens"])


@contextmanager
def fault_at(number, fault):
    """Call `fault` before the n-th call that changes a file or a folder; the list of the calls so far is yielded."""
    calls, opens = [], io.open

    def counted(call):
        def one(*arguments, **options):
            calls.append(call)
            if len(calls) == number:
                fault()
            return call(*arguments, **options)

        return one

    def opened(path, mode="r", *arguments, **options):
        file = opens(path, mode, *arguments, **options)
        if "r" not in mode:
            wrapped = MagicMock(wraps=file)
            wrapped.write, wrapped.close, wrapped.fileno = counted(file.write), counted(file.close), file.fileno
            wrapped.__enter__.return_value = wrapped
            wrapped.__exit__.side_effect = lambda *_: wrapped.close()
            return wrapped
        return file

    with ExitStack() as patches:
        for name in ("fsync", "rename", "replace", "rmdir", "unlink"):
            patches.enter_context(patch.object(os, name, counted(getattr(os, name))))
        patches.enter_context(patch.object(io, "open", opened))
        yield calls


def save_twice(root, number, kind):
    """Save twice with a fault at the n-th call; return whether it came so far."""
    if kind is None:
        child = os.fork()
        if child == 0:
            with fault_at(number, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                save(root, 200)
                save(root, 300)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0

    def failing():
        raise OSError(kind, os.strerror(kind))

    with fault_at(number, failing) as calls, suppress(LabError):
        save(root, 200)
        save(root, 300)
    return len(calls) >= number


def save(root, consumed):
    tensors = {"w": torch.full((3,), float(consumed)), "optimizer.w.exp_avg": torch.zeros(3)}
    small = {"state.ckpt": packed({"shared": {}}), "counts.npz": b"counts"}
    writer = ShardWriter(root, small, lambda files: publish(root, consumed, 2, "run", files))
    write_shards(tensors, writer, None, background=False)


@pytest.mark.parametrize(
    ("kind", "first", "step"),  # a fault at every call, of one kind by default
    [
        pytest.param(None, 1, 2, id="kill"),
        pytest.param(errno.ENOSPC, 2, 2, id="ENOSPC"),
        *(pytest.param(kind, 1, 1, id=f"{kind}", marks=pytest.mark.slow) for kind in (None, errno.ENOSPC, errno.EIO)),
    ],
)
def test_a_fault_anywhere_in_a_save_leaves_a_whole_checkpoint(tmp_path, kind, first, step):
    number = first
    while True:
        root = tmp_path / str(number)
        save(root, 100)
        reached = save_twice(root, number, kind)
        assert newest(root).consumed_tokens in (100, 200, 300), "what was not finished has no name"
        save(root, 400)
        assert newest(root).consumed_tokens == 400
        if not reached:
            break
        number += step
    assert number > 60, "two saves change files more often than that"
