"""One holder of a lock at a time, whatever ends the one before it."""

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import filelock
import psutil
import pytest

from lab.core.errors import ConfigError, InUse
from lab.core.locks import holder_file, is_held, locked
from tests.refusals import refused

FORK = multiprocessing.get_context("fork")
LIMIT_S = 240


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / ".lock"


def hold(path, ready):
    """Hold a lock, and start two children that outlive this process: a fork, and a command."""
    os.setpgrp()
    with locked(path):
        if os.fork() == 0:
            time.sleep(LIMIT_S)
            os._exit(0)
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LIMIT_S})"], close_fds=False)
        ready.set()
        time.sleep(LIMIT_S)


def test_a_holder_is_named_and_a_killed_one_is_not_in_the_way_though_its_children_live(path):
    ready = FORK.Event()
    holder = FORK.Process(target=hold, args=(path, ready))
    holder.start()
    assert ready.wait(LIMIT_S)
    try:
        record = json.loads(holder_file(path).read_text())
        line = f"{path.parent}: is in use by process {holder.pid} on {record['host']} since {record['since']}; "
        with refused(line, error=InUse), locked(path):
            pass
        assert is_held(path)
        holder.kill()
        psutil.Process(holder.pid).wait(LIMIT_S)  # join would wait for the child, which holds the same pipe
        assert not is_held(path)
        with locked(path):
            assert json.loads(holder_file(path).read_text())["pid"] == os.getpid()
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
    assert list(path.parent.iterdir()) == [], "nothing is left"


LOCKLESS = [(errno.ENOSYS, ConfigError, "{path}: cannot be written (Function not implemented)")]
LOCKLESS += [(errno.EACCES, InUse, "{path.parent}: cannot be locked, and no process says")]


@pytest.mark.parametrize(("number", "error", "rule"), LOCKLESS)
def test_a_file_system_that_locks_nothing_is_refused(path, monkeypatch, number, error, rule):
    def denied(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filelock._unix.fcntl, "flock", denied)
    with refused(rule.format(path=path), error=error), locked(path):
        pass


def add(path, counter, times):
    for _ in range(times):
        with locked(path, wait=True):
            number = int(counter.read_text())
            time.sleep(0.001)
            counter.write_text(str(number + 1))


def test_never_two_at_once(path, tmp_path, monkeypatch):
    monkeypatch.setattr("lab.core.locks.POLL_S", 0.005)
    counter = tmp_path / "counter"
    counter.write_text("0")
    with FORK.Pool(4) as pool:
        pool.starmap(add, [(path, counter, 20)] * 4, chunksize=1)
    assert counter.read_text() == "80"
