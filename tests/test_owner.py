"""One owner at a time, whatever ends the one before it."""

import json
import multiprocessing
import os
import signal
import threading
import time

import pytest
from lab.owner import describe_process, find_owner, owned

from lab import owner
from lab.errors import InUse
from tests.refusals import refused

FORK = multiprocessing.get_context("fork")
LIMIT_S = 30


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / ".owner"


def write(path, age=0.0, **others):
    """Write an owner that last touched its file so many seconds ago."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(describe_process() | {"token": "other"} | others))
    os.utime(path, (time.time() - age,) * 2)


def hold(path, ready):
    with owned(path):
        ready.set()
        time.sleep(LIMIT_S)


@pytest.fixture
def holder(path):
    ready = FORK.Event()
    process = FORK.Process(target=hold, args=(path, ready), daemon=True)
    process.start()
    assert ready.wait(LIMIT_S)
    yield process
    process.kill()
    process.join(LIMIT_S)


def test_another_process_of_this_machine_is_named_and_a_killed_one_is_not_in_the_way(path, holder):
    record = json.loads(path.read_text())
    line = f"{path.parent}: is in use by process {holder.pid} on {record['host']} since {record['since']}"
    with refused(line, error=InUse), owned(path):
        pass
    assert find_owner(path) == record
    os.kill(holder.pid, signal.SIGKILL)
    deadline = time.monotonic() + LIMIT_S
    while find_owner(path):  # not waited for by its parent: a zombie from now on
        assert time.monotonic() < deadline
    with owned(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert list(path.parent.iterdir()) == []


GONE = [describe_process() | other for other in ({"start": "1"}, {"pid": 2**22 + 1}, {"pid": "?"}, {"pid": None})]


@pytest.mark.parametrize("content", [b"", b'{"pid": 1', b"[]", b"\xff", *(json.dumps(o).encode() for o in GONE)])
def test_a_torn_file_or_another_process_of_that_number_is_no_owner(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with owned(path):
        pass


def test_an_owner_elsewhere_is_taken_over_a_minute_after_its_last_beat(path):
    write(path, age=owner.LIMIT_S + 1, machine="elsewhere")
    with owned(path):
        pass
    write(path, age=owner.LIMIT_S - 0.7, machine="elsewhere")  # waited for until the minute is over
    assert find_owner(path) is not None
    with owned(path):
        pass


def test_an_owner_elsewhere_that_beats_is_refused(path):
    write(path, machine="elsewhere", host="node7")
    beat = threading.Timer(0.3, os.utime, [path])
    beat.start()
    with refused(f"{path.parent}: is in use by process {os.getpid()} on node7 ", error=InUse), owned(path):
        pass
    beat.join()


def test_the_file_is_touched_and_a_takeover_is_noticed(path, monkeypatch):
    monkeypatch.setattr(owner, "BEAT_S", 0.02)
    lost, called = [], threading.Event()
    with owned(path, lost=lambda record: (lost.append(record["token"]), called.set())):
        os.utime(path, (0, 0))
        deadline = time.monotonic() + LIMIT_S
        while path.stat().st_mtime == 0:
            assert time.monotonic() < deadline, "no beat"
            time.sleep(0.01)
        write(path)
        assert called.wait(LIMIT_S)
    assert lost == ["other"]
    assert path.exists(), "it is another's"


def add(path, counter, times):
    for _ in range(times):
        with owned(path, wait=True):
            number = int(counter.read_text())
            time.sleep(0.001)
            counter.write_text(str(number + 1))


def test_never_two_at_once(path, tmp_path, monkeypatch):
    monkeypatch.setattr(owner, "POLL_S", 0.005)
    counter = tmp_path / "counter"
    counter.write_text("0")
    processes = [FORK.Process(target=add, args=(path, counter, 20)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT_S)
    assert [process.exitcode for process in processes] == [0] * 4
    assert counter.read_text() == "80"
