"""Tests that are longer than a model's table of positions are refused in one line."""

import importlib
import json

from eval.lines import main as lines


def test_lengths_left_out_are_within_the_table(foreign, capsys, tmp_path, text_file, monkeypatch):
    model = str(foreign("gpt2"))  # 512 positions
    words = {"passkey": "--depths=2 --tests=1", "entropy": f"--texts=1 --text={text_file}"}
    words["probe"] = f"--tests=1 --haystack={text_file} --threshold=0.01"
    longest = {"passkey": "length", "entropy": "visible", "probe": "length"}
    for name, options in words.items():
        main = importlib.import_module(f"eval.{name}").main
        capsys.readouterr()  # what writing the model has shown
        assert main([model, *options.split(), "-o", str(tmp_path / name), "--json"]) == 0
        lengths = [row.get(longest[name], 0) for row in json.loads(capsys.readouterr().out)["rows"]]
        assert 512 / 4 <= max(lengths) <= 512
    monkeypatch.setattr("eval.lines.BUDGET", 500)
    assert lines([model, "-o", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "--lengths=1024: must be <= 512, the positions that gpt2 has; lower it\n"
