"""Every evaluation runs as a module, and answers a folder that is no model with one line."""

import runpy
import signal
import sys

import pytest

MODULES = ("entropy", "heatmap", "impact", "lines", "methods", "passkey", "perplexity", "precision", "probe", "ruler")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("module", [*MODULES, "compare", "picture", "positions"])
def test_a_module_answers_a_wrong_word_with_one_line(tmp_path, capsys, monkeypatch, module):
    monkeypatch.setattr(sys, "argv", [f"eval.{module}", str(tmp_path)])
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(f"eval.{module}", run_name="__main__")
    finally:
        signal.signal(signal.SIGTERM, handler)
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert str(tmp_path) in err or module == "impact"
