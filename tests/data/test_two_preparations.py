"""Preparations side by side, killed, or on a full disk: the same bytes, nothing done twice, nothing left over."""

import errno
import itertools
import multiprocessing
import os
import random
import signal
import time

import pytest

from lab.core.errors import DiskError
from lab.data import preparation
from lab.data.preparation import prepare, shard_folder
from lab.data.tokenizing import TokenShardWriter
from tests.data.stores import folder_bytes, text_config, write_corpus
from tests.refusals import refused

FORK = multiprocessing.get_context("fork")
LIMIT_S = 240


def prepare_slowly(config, log):
    """Prepare, a moment for each shard, and note each task run."""
    run = preparation.run_task

    def slow(*arguments):
        with log.open("a") as file:
            file.write(f"{arguments[-1]}\n")
        time.sleep(0.1)
        return run(*arguments)

    preparation.run_task = slow
    prepare(config, progress=False)


def start(config, log):
    process = FORK.Process(target=prepare_slowly, args=(config, log), daemon=True)
    process.start()
    return process


def written_bytes(config):
    """Read all files of the shards but those of the lock, which a killed holder leaves to the next one."""
    files = folder_bytes(shard_folder(config))
    return {name: data for name, data in files.items() if name not in (".lock", ".lock.holder")}


@pytest.fixture
def expected(tmp_path):
    """The bytes of one preparation of six files, and a config that prepares them elsewhere."""
    write_corpus(tmp_path / "corpus", files=6)
    alone = text_config(tmp_path, folder=str(tmp_path / "alone"))
    prepare(alone, progress=False)
    return folder_bytes(shard_folder(alone)), text_config(tmp_path)


def test_two_at_once_share_the_tasks_and_write_the_same_bytes(expected, tmp_path):
    whole, config = expected
    both = [start(config, tmp_path / "log") for _ in range(2)]
    for process in both:
        process.join(LIMIT_S)
    assert [process.exitcode for process in both] == [0, 0]
    assert sorted((tmp_path / "log").read_text().split()) == [str(task) for task in range(6)]
    assert folder_bytes(shard_folder(config)) == whole


def test_kills_at_any_moment_lose_no_finished_task(expected, tmp_path, repeats, record_property):
    whole, config = expected
    folder, moments = shard_folder(config), random.Random(3)
    record_property("count", kills := repeats(4, 50))
    for _ in range(kills):
        process = start(config, tmp_path / "log")
        time.sleep(moments.uniform(0.02, 0.3))
        os.kill(process.pid, signal.SIGKILL)
        process.join(LIMIT_S)
    done = {path: path.stat().st_ino for path in folder.glob("task-*")}
    prepare(config, progress=False)
    assert {path: path.stat().st_ino for path in done} == done
    assert written_bytes(config) == whole


def prepare_and_die(config, syncs):
    """Prepare, and be killed in the n-th call of fsync."""
    calls = itertools.count(1)
    sync = os.fsync

    def killed(descriptor):
        sync(descriptor)
        if next(calls) == syncs:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = killed
    prepare(config, progress=False)


def test_a_kill_at_each_write_leaves_nothing_half_written(tmp_path):
    write_corpus(tmp_path / "corpus", files=1)
    alone = text_config(tmp_path, folder=str(tmp_path / "alone"))
    prepare(alone, progress=False)
    for syncs in itertools.count(1):
        config = text_config(tmp_path, folder=str(tmp_path / f"killed-{syncs}"))
        process = FORK.Process(target=prepare_and_die, args=(config, syncs), daemon=True)
        process.start()
        process.join(LIMIT_S)
        prepare(config, progress=False)
        assert written_bytes(config) == written_bytes(alone), syncs
        if process.exitcode == 0:
            break
    assert syncs > 20, "the files of a task, of the preparation and of two indices"


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(expected, monkeypatch):
    whole, config = expected
    folder, add, calls = shard_folder(config), TokenShardWriter.add, []

    def full(self, *arguments):
        calls.append(arguments)
        if len(calls) == 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TokenShardWriter, "add", full)
        with refused(f"{folder / 'task-00002'}: needs more, {{}} (No space left on device)", error=DiskError):
            prepare(config, progress=False)
    left = {".modified.json", "inputs.json", "task-00000", "task-00001", "tokenizer.json"}
    assert {path.name for path in folder.iterdir()} == left
    prepare(config, progress=False)
    assert folder_bytes(folder) == whole
