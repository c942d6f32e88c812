"""Saving in runs: in the background as in the foreground, waited for by no probe, and killed anywhere."""

import errno
import io
import os
import signal
import threading
from contextlib import ExitStack, contextmanager, suppress
from unittest.mock import MagicMock, patch

import pytest
import torch

from lab.core.errors import LabError
from lab.core.files import sha256
from lab.runs.checkpoints import candidates, folder_name, newest
from lab.runs.shards import ShardWriter, packed, publish, write_shards
from tests.fits import UNPROBED, exact_metrics, records
from tests.ranks import train

STEPS = 6
OPTIONS = (
    *(f"--train.tokens={512 * STEPS}", "--train.batch_tokens=512", "--train.micro_batch_tokens=256"),
    *("--train.checkpoint_every_tokens=1", f"--train.keep_checkpoints={STEPS}", *UNPROBED),
)
BACKGROUND = "--train.async_checkpoints=true"


@pytest.mark.parametrize("part", ["one", "fsdp2"])
def test_checkpoints_in_the_background_hold_the_same_tensors(place, ranks, part):
    waiting, run = (place / "runs" / f"{part}_{name}" for name in ("waiting", "background"))
    ranks.train(part, place, waiting.name, *OPTIONS)
    ranks.train(part, place, run.name, *OPTIONS, BACKGROUND)
    assert exact_metrics(run) == exact_metrics(waiting)
    ours, theirs = candidates(run / "checkpoints"), candidates(waiting / "checkpoints")
    assert [folder.name for folder in ours] == [folder.name for folder in theirs]
    for mine, other in zip(ours, theirs):
        assert {path.name for path in mine.iterdir()} == {path.name for path in other.iterdir()}
        assert all(sha256(path) == sha256(other / path.name) for path in mine.glob("*.safetensors"))
    assert not (run / "checkpoints" / ".writing").exists()


def train_with_slow_writing(settings, resume):
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
        assert train(settings, resume) == 0
    return waited


@pytest.mark.parametrize(("part", "every"), [("one", 512 * (STEPS - 1)), ("fsdp2", "null")])
def test_a_probe_waits_for_no_save_in_the_background(place, ranks, part, every):
    options = (*OPTIONS, BACKGROUND, f"--train.checkpoint_every_tokens={every}")
    waited = ranks.train(part, place, f"slow_{part}", *options, job=train_with_slow_writing)
    assert waited == [[False]] * len(waited)
    run = place / "runs" / f"slow_{part}"
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


EVERY = [pytest.param(kind, 1, 1, marks=pytest.mark.slow) for kind in (None, errno.ENOSPC, errno.EIO)]  # every call


@pytest.mark.parametrize(("kind", "first", "step"), [(None, 1, 2), (errno.ENOSPC, 2, 2), *EVERY])
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
