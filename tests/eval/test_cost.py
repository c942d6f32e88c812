"""Tests that are longer than a model's table of positions are refused in one line, and long work names its cost."""

import importlib
import json
from types import SimpleNamespace

from eval.engine import subject as subjects
from eval.lines import main as lines
from lab.model.decoder import DecoderConfig

CFG = DecoderConfig(d_model=16, n_layers=2, n_heads=2, n_kv_heads=2, d_ff=32, vocab_size=64, tie_embeddings=False)


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


def announced(tests, capsys, monkeypatch, window=512, passes=1):
    timed = []
    monkeypatch.setattr(subjects, "measure_seconds", lambda subject, tokens: timed.append(tokens) or 1.0)
    subject = SimpleNamespace(model=SimpleNamespace(decoder=SimpleNamespace(cfg=CFG), train_len=window))
    subjects.announce_cost(subject, "passkey", "test", tests, passes)
    return timed, capsys.readouterr().err


def test_the_cost_is_named_where_it_is_more_than_a_minute_and_little_work_is_not_timed(capsys, monkeypatch):
    assert announced([(10, 512)], capsys, monkeypatch) == announced([], capsys, monkeypatch) == ([], "")
    monkeypatch.setattr(subjects, "SLOWEST", 0.0)
    assert announced([(59, 512)], capsys, monkeypatch) == ([512], "")
    line = "passkey: 600 tests, 307,200 tokens: about 10 min at most\n"
    assert announced([(500, 512), (100, 512)], capsys, monkeypatch) == ([512], line)
    # the same tests, each answered and scored: twice the tokens and minutes, and not the tests
    line = "passkey: 600 tests, 614,400 tokens: about 20 min at most\n"
    assert announced([(600, 512)], capsys, monkeypatch, passes=2) == ([512], line)
    # a matrix parameter takes 2 operations, a visible key 4 a layer and unit of width; of n tokens n / 2 are visible
    matrices = 2 * (4 * 16 * 16 + 3 * 16 * 32) + 16 * 64
    whole, timed = (n * (2 * matrices + 4 * 2 * 16 * n / 2) for n in (8192, 512))
    minutes = round(100 * whole / timed / 60)
    factor = "the longest has 8,192, 16.0 times the window of 512"
    line = f"passkey: 100 tests, 819,200 tokens: about {minutes} min at most; {factor}\n"
    assert announced([(100, 8192)], capsys, monkeypatch) == ([512], line)
