"""Lost output: a closed or full stream costs lines, never a run; a command that only prints ends quietly."""

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from lab.train import environment as environment_of_runs
from tests.fits import UNPROBED, command, fit, records
from tests.forked import LIMIT_S, ROOT, Forked, python

SHORT = ("--train.tokens=3072", "--optim.warmup_steps=1")
PRINTS = [sys.executable, "-m", "lab.fit", "configs/cpu_test.yaml", "--print_config"]


def shell(words, rest, cwd=ROOT, **environment):
    env, words = {**os.environ, **environment}, ["bash", "-c", f"set -o pipefail; {' '.join(words)} {rest}"]
    return subprocess.run(words, check=False, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, env=env)


@pytest.mark.parametrize("rest", ["| head -1", ">&-", "2>&-", ">/dev/full", "2>/dev/full"])
def test_a_command_that_prints(rest):
    done = shell(PRINTS, rest)
    reported = [line.partition(" (")[0] for line in done.stderr.splitlines()]
    assert (done.returncode, reported) == (0, ["stdout: cannot be written"] * (rest == ">/dev/full"))


def test_a_result_that_is_lost_is_a_failure():
    words = ["-m", "eval.positions", "string", "--shift=3", "--window=0", "--length=9", "--json"]
    done = shell([sys.executable, *words], ">/dev/full")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("stdout: cannot be written ")


def test_characters_that_the_encoding_lacks_are_written_as_escapes():
    done = shell([sys.executable, "-m", "lab.fit", "configs/größe.yaml"], "", PYTHONIOENCODING="ascii")
    assert (done.returncode, "gr\\xf6\\xdfe" in done.stderr, done.stderr.count("\n")) == (2, True, 1)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("output")
    fit(place, "prepares", *UNPROBED, *SHORT)
    return place


def to_a_pipe(place):
    """Name a stream whose reader closes it after a line."""
    os.mkfifo(place / "pipe")

    def read():
        with (place / "pipe").open() as pipe:
            pipe.readline()

    threading.Thread(target=read).start()
    return place / "pipe"


@pytest.mark.parametrize("stream", [to_a_pipe, lambda place: "/dev/full"], ids=["closed", "full"])
def test_a_run_goes_on_without_its_output(place, tmp_path, stream):
    run = Forked(command(place, tmp_path.name, *UNPROBED, *SHORT), output=stream(tmp_path), merged=True)
    assert run.wait() == 0
    assert records(place / "runs" / tmp_path.name)[-1]["step"] == 3


def test_a_closed_terminal_saves_the_run(place):
    leader, follower = pty.openpty()
    words = command(place, "closed", *UNPROBED, "--train.tokens=4096000")
    child = Forked(words, output=os.ttyname(follower), merged=True)
    run = place / "runs" / "closed"
    until = time.monotonic() + LIMIT_S
    while not (run / "metrics.jsonl").exists() or len(records(run)) < 3:
        assert child.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
        os.set_blocking(leader, False)
        with suppress(BlockingIOError):
            os.read(leader, 65536)
    os.close(follower)
    os.close(leader)  # from here on writing to the terminal fails
    os.kill(child.pid, signal.SIGHUP)
    try:
        assert child.wait() == 75
    finally:
        child.kill()
    saved = sorted((run / "checkpoints").iterdir())[-1]
    assert int(saved.name.removeprefix("tokens-")) == records(run)[-1]["consumed_tokens"]


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
import runpy
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=False)
"""


@pytest.mark.parametrize("module", ["lab.fit", "lab.export"])
def test_a_limit_of_file_sizes_is_one_line(place, tmp_path, module):
    words = command(place, "limited", *UNPROBED)[3:]
    if module == "lab.export":
        words = [str(place / "runs" / "prepares"), "-o", str(tmp_path / "exported")]
    done = python("-c", LIMITED, "60000", module, *words)
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "File too large" in line]
    assert "; raise `ulimit -f`" in line
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "exported").exists()


def test_a_change_that_is_not_text_is_recorded(monkeypatch):
    def run(words, check, **options):
        return subprocess.run([sys.executable, "-c", "import os; os.write(1, b'a \\xff b')"], check=check, **options)

    monkeypatch.setattr(environment_of_runs, "subprocess", SimpleNamespace(run=run, CalledProcessError=OSError))
    assert environment_of_runs.git("diff") == "a \N{REPLACEMENT CHARACTER} b"
