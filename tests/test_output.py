"""Lost output: a closed or full stream costs lines, never a run; a command that only prints ends quietly."""

import os
import shlex
import subprocess
import sys

import pytest

from lab.train.environment import git
from tests.fits import UNPROBED, command, fit, records
from tests.forked import LIMIT_S, ROOT

SHORT = ("--train.tokens=3072", "--optim.warmup_steps=1")
PRINTS = "lab.fit configs/cpu_test.yaml --print_config"
MEASURES = "eval.positions string --shift=3 --window=0 --length=9 --json"


def shell(words, first="set -o pipefail", **environment):
    env, words = {**os.environ, **environment}, ["bash", "-c", f"{first}; {sys.executable} -m {words}"]
    return subprocess.run(words, check=False, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, env=env)


@pytest.mark.parametrize(
    ("words", "status", "reported"),
    [
        *((f"{PRINTS} {rest}", 0, []) for rest in ("| head -1", ">&-", "2>&-", "2>/dev/full")),
        (f"{PRINTS} >/dev/full", 0, ["stdout: cannot be written"]),
        (f"{MEASURES} >/dev/full", 2, ["stdout: cannot be written"]),
    ],
)
def test_a_command_whose_output_is_lost_fails_only_where_that_is_its_result(words, status, reported):
    done = shell(words)
    assert (done.returncode, [line.partition(" (")[0] for line in done.stderr.splitlines()]) == (status, reported)


def test_characters_that_the_encoding_lacks_are_written_as_escapes():
    done = shell("lab.fit configs/größe.yaml", PYTHONIOENCODING="ascii")
    assert (done.returncode, "gr\\xf6\\xdfe" in done.stderr, done.stderr.count("\n")) == (2, True, 1)


ENDS = [("closed", "2>&1 | head -1"), pytest.param("full", ">/dev/full 2>&1", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("name", "rest"), ENDS)
def test_a_run_goes_on_without_its_output(place, name, rest):
    done = shell(f"{shlex.join(command(place, name, *UNPROBED, *SHORT)[2:])} {rest}")
    assert done.returncode == 0
    assert records(place / "runs" / name)[-1]["step"] == 3


def test_a_limit_of_file_sizes_is_one_line(place, tmp_path):
    run = fit(place, "prepares", *UNPROBED, *SHORT)
    export = ["lab.export", str(run), "-o", str(tmp_path / "exported")]
    for words in (command(place, "limited", *UNPROBED)[2:], export):
        done = shell(shlex.join(words), "ulimit -f 60")  # KiB
        assert done.returncode == 2, done.stderr
        (line,) = [line for line in done.stderr.splitlines() if "File too large" in line]
        assert "; raise `ulimit -f`" in line
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "exported").exists()


def test_a_change_that_is_not_text_is_recorded(tmp_path, monkeypatch):
    (tmp_path / "git").write_text("#!/bin/sh\nprintf 'a \\377 b'\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert git("diff") == "a \N{REPLACEMENT CHARACTER} b"
