"""Many runs on one machine: kills, failures, signals and two sweeps side by side, with a small program for lab.fit."""

import multiprocessing
import os
import random
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest

from lab.core.locks import LOCK_NAME, locked
from lab.sweep import __main__ as schedule
from lab.sweep import nodes

LIMIT_S, STEPS = 240, 8
PROGRAM = """
import os, signal, sys, time
place, mode, steps = sys.argv[1:]
stop = []
def write(name, line):
    with open(place + "/" + name, "a") as file: file.write(line + chr(10))
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda n, frame: (write("signals", signal.Signals(n).name), stop.append(n)))
write("starts", str(os.getpid()))
done = open(place + "/steps").read().count(chr(10)) if os.path.exists(place + "/steps") else 0
while done < int(steps):
    time.sleep(0.02)
    if stop and mode != "deaf": sys.exit(75)
    if mode == "waits" and done == 3 and len(open(place + "/starts").readlines()) == 1: continue  # for a signal
    if mode == "fails" and done == 3:
        print("half a bar", end=chr(13), flush=True); print("ValueError: planted", file=sys.stderr); sys.exit(1)
    write("steps", str(done))
    done += 1 if mode != "deaf" else 0
write("done", "")
"""


@dataclass(frozen=True)
class Small:
    """A run of the program above, which continues after its last step as lab.fit --resume does after a checkpoint."""

    path: Path
    mode: str
    swept = MappingProxyType({})

    @property
    def experiment(self):
        return self.path

    def command(self, jobs):
        return [sys.executable, "-S", "-E", "-c", PROGRAM, str(self.path), self.mode, str(STEPS)]


def runs(place, *modes):
    return [Small(place / f"run_{n}", mode) for n, mode in enumerate(modes)]


def train(place, modes, jobs):
    os.setsid()  # so that a signal to this group reaches no process but those of the sweep
    nodes.COPY_S = 0.05
    schedule.is_trained = lambda path: (path / "done").exists()
    sys.exit(schedule.train_runs(runs(place, *modes), jobs))


@contextmanager
def sweeping(place, *modes, jobs=2):
    process = multiprocessing.get_context("fork").Process(target=train, args=(place, modes, jobs))
    process.start()
    try:
        yield process
    finally:
        for left in [process, *running(place)]:
            left.kill()
        process.join(LIMIT_S)


def running(place):
    """List the processes of the runs, whose last words name their folder."""
    found = [p for p in psutil.process_iter(["cmdline", "status"]) if p.info["status"] != "zombie"]
    return [p for p in found if str(place) in " ".join((p.info["cmdline"] or [])[-3:])]


def wait_for(condition, what):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def status(process):
    process.join(LIMIT_S)
    return process.exitcode


def lines(place, run, name):
    path = place / f"run_{run}" / name
    return path.read_text().split() if path.exists() else []


def test_a_sweep_killed_at_any_moment_and_restarted_ends_with_the_same_finished_runs(tmp_path):
    moments = random.Random(1)
    for _ in range(4):
        with sweeping(tmp_path, *["trains"] * 5) as process:
            time.sleep(moments.uniform(0.02, 0.25))
            process.kill()
            assert status(process) == -signal.SIGKILL
    with sweeping(tmp_path, *["trains"] * 5) as process:
        assert status(process) == 0
    for run in range(5):  # no step is missing, and none was done twice
        assert lines(tmp_path, run, "steps") == [str(step) for step in range(STEPS)]
        assert (tmp_path / f"run_{run}" / "done").read_text() == "\n"


def test_no_run_outlives_a_killed_sweep(tmp_path):
    with sweeping(tmp_path, "deaf", "deaf") as process:
        wait_for(lambda: all(lines(tmp_path, run, "steps") for run in range(2)), "the runs never started")
        process.kill()
        wait_for(lambda: not running(tmp_path), "a run outlives its sweep")


def test_a_failing_run_stops_no_other_and_shows_its_last_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(schedule, "is_trained", lambda path: (path / "done").exists())
    assert schedule.train_runs(runs(tmp_path, "trains", "fails", "trains"), jobs=1) == 1
    failed = "run_1    failed  status 1: ValueError: planted"
    listed = ["run_0    finished", failed, "run_2    finished", "3 runs: 1 failed, 2 finished"]
    assert capsys.readouterr().out.splitlines() == listed
    assert schedule.train_runs(runs(tmp_path, "trains", "trains", "trains"), jobs=3) == 0
    assert [len(lines(tmp_path, run, "starts")) for run in range(3)] == [1, 2, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1], ids=lambda n: n.name)
def test_a_signal_reaches_every_run_once_and_the_sweep_resumes(tmp_path, number):
    with sweeping(tmp_path, "waits", "waits", "trains") as process:
        wait_for(lambda: all(lines(tmp_path, run, "steps") for run in range(2)), "the runs never started")
        os.killpg(process.pid, number)  # as a terminal does
        assert status(process) == 75
        assert running(tmp_path) == []
    assert [lines(tmp_path, run, "signals") for run in range(3)] == [["SIGTERM"], ["SIGTERM"], []]
    with sweeping(tmp_path, "waits", "waits", "trains") as process:
        assert status(process) == 0


def test_a_second_ctrl_c_ends_runs_that_do_not_stop(tmp_path):
    with sweeping(tmp_path, "deaf", "deaf") as process:
        wait_for(lambda: all(lines(tmp_path, run, "steps") for run in range(2)), "the runs never started")
        os.kill(process.pid, signal.SIGINT)
        wait_for(lambda: all(lines(tmp_path, run, "signals") for run in range(2)), "no run was signalled")
        os.kill(process.pid, signal.SIGTERM)  # repeated by a launcher; ends nothing
        time.sleep(0.1)
        assert len(running(tmp_path)) == 2
        os.kill(process.pid, signal.SIGINT)
        assert status(process) == 75
        assert running(tmp_path) == []


def test_a_run_of_another_process_is_left_to_it(tmp_path):
    with locked(tmp_path / "run_0" / LOCK_NAME), sweeping(tmp_path, "trains", "trains") as process:
        assert status(process) == 75
    assert (lines(tmp_path, 0, "starts"), len(lines(tmp_path, 1, "steps"))) == ([], STEPS)
    with sweeping(tmp_path, "trains", "trains") as process:
        assert status(process) == 0
    assert lines(tmp_path, 0, "steps") == [str(step) for step in range(STEPS)]
