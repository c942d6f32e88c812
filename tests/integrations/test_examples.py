"""The examples run as they are."""

import subprocess
import sys

import pytest

from tests.forked import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_prints_its_table(path):
    if path.stem.startswith("litgpt"):
        pytest.importorskip("litgpt", reason="pip install --no-deps 'litgpt==0.5.13'")
    done = subprocess.run([sys.executable, path], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "log_prob" in done.stdout
