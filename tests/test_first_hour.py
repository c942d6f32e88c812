"""The page of the first hour, followed from top to bottom at tiny size: files written, commands run, lines printed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eval.commands import size_of
from tests.forked import ROOT

LIMIT_S = 300
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
TINY = {"d_model: 128": "d_model: 32", "d_ff: 344": "d_ff: 64", "200_000": "20_480", "100_000": "10_240"}
TINY |= {"25_000": "5_120", "tests: 20": "tests: 2", "max_new_tokens=40": "max_new_tokens=4"}


@pytest.fixture
def start(tmp_path):
    """A folder with the parts of a checkout that the page reads."""
    pytest.importorskip("transformers")
    pytest.importorskip("altair")
    for name in ("docs", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.png"))
    return tmp_path


def run(place, *words):
    """Run a program with this Python first in the path and one thread; return what it prints."""
    python = Path(sys.executable).parent
    own = {"PATH": f"{python}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(place)}
    done = subprocess.run(words, cwd=place, env=own, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"{words}\n{done.stderr[-3000:]}"
    return done.stdout


def form(line):
    """Write a line as its words, with # for every number and hash, which differ at tiny size."""
    return " ".join(re.sub(r"-[0-9a-f]{10}\b|<?-?[\d,.]*\d", "#", line).split())


def commands(block):
    """List the commands of a block, each with the lines that the page shows below it."""
    for part in block.split("$ ")[1:]:
        command, *lines = part.splitlines()
        yield command, [form(line) for line in lines]


@pytest.mark.slow
def test_a_stranger_follows_the_page(start):
    page, done = (ROOT / "docs" / "first_hour.md").read_text(), set()
    for large, small in TINY.items():
        assert large in page
        page = page.replace(large, small)
    for language, text in BLOCK.findall(page):
        if language == "yaml":
            (start / text.split()[1]).write_text(text)
        elif language == "python":
            assert run(start, sys.executable, "-c", text) or "print" not in text
        elif not language:  # a block of sh installs or opens something
            for command, shown in commands(text):
                printed = [form(line) for line in run(start, "bash", "-c", command).splitlines()]
                assert [line for line in shown if line not in printed] == [], printed
                done.add(" ".join(command.split()[:3]))
    assert len(done) >= 9
    assert min(size_of(start / "six.png")) > 300
