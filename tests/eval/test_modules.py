"""Every evaluation runs as a module, and answers a folder that is no model with one line."""

import pytest

from tests.forked import python

QUICK = ("compare", "perplexity", "positions")
OTHERS = ("entropy", "heatmap", "impact", "lines", "methods", "passkey", "precision", "probe", "ruler")


@pytest.mark.parametrize("module", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_module_answers_a_wrong_word_with_one_line(tmp_path, module):
    done = python("-m", f"eval.{module}", str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert str(tmp_path) in done.stderr or module == "impact"
