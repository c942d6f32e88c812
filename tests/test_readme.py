"""The questions of the README: each row that takes no run and no training is run as it is printed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import ROOT

ROWS = re.findall(r"^\| [^|]+\? \| `([^`]+)`", (ROOT / "README.md").read_text(), re.M)
TRAINS = ("cpu_demo", "shape_demo", " sweep ", "papers", "tiny_2k")
CHEAP = [row for row in ROWS if not any(word in row for word in TRAINS)]


def test_the_table_has_rows_of_both_kinds():
    assert (len(ROWS), len(CHEAP)) == (12, 4)


@pytest.mark.parametrize("row", [pytest.param(row, marks=pytest.mark.slow if "reach" in row else ()) for row in CHEAP])
def test_a_row_shows_something(row, tmp_path):
    if "report" in row:
        pytest.importorskip("altair")
    for name in ("experiments", "lab", "eval", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    python = Path(sys.executable)
    path = {"PATH": f"{python.parent}:{Path(shutil.which('env')).parent}", "OMP_NUM_THREADS": "1"}
    command = row.replace("probe-lab", f"{python} -m lab.cli").replace("python -m exp", f"{python} -m exp")
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert len(done.stdout) > 60
    assert "reach" not in row or "moved reach: demand+1; did not: f" in done.stdout
