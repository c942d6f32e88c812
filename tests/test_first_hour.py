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
TOKENS = {"200_000": "20_480", "100_000": "10_240", "25_000": "5_120"}
SIZES = {"d_model: 128": "d_model: 32", "d_ff: 344": "d_ff: 64", " tests: 20": " tests: 2"}


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


@pytest.mark.slow
def test_a_stranger_follows_the_page(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("altair")
    for name in ("docs", "configs"):  # what the page reads of a checkout
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.png"))
    page, done = (ROOT / "docs" / "first_hour.md").read_text(), set()
    for large, small in (TOKENS | SIZES).items():
        assert large in page
        page = page.replace(large, small)
    for language, text in BLOCK.findall(page):
        if language == "yaml":
            (tmp_path / text.split()[1]).write_text(text)
        elif language == "python":
            assert run(tmp_path, sys.executable, "-c", text) or "print" not in text
        elif not language:  # a block of sh installs or opens something
            for command, *shown in map(str.splitlines, text.split("$ ")[1:]):
                printed = {form(line) for line in run(tmp_path, "bash", "-c", command).splitlines()}
                assert {*map(form, shown)} <= printed
                done.add(" ".join(command.split()[:3]))
    assert len(done) >= 9
    assert min(size_of(tmp_path / "six.png")) > 300
