"""Tests that are longer than a model's table of positions are refused in one line, and long work names its cost."""

import importlib
import json
from types import SimpleNamespace

import pytest

from eval.engine import subject as subjects
from lab.model.decoder import DecoderConfig

TABLE = 512  # positions of the models of `foreign`
TOO_LONG = "{}=513: must be <= 512, the positions that gpt2 has; lower it\n"
REFUSED = [  # a command, its words, and the line or its beginning
    ("passkey", "--lengths=513", TOO_LONG.format("--lengths")),
    ("lines", "--lengths=513", TOO_LONG.format("--lengths")),
    ("entropy", "--lengths=513", TOO_LONG.format("--lengths")),
    ("perplexity", "--lengths=64,513", TOO_LONG.format("--lengths")),
    ("precision", "--length=513", TOO_LONG.format("--length")),
    ("distance", "--window=513", TOO_LONG.format("--window")),
    ("probe", "--max_length=513", TOO_LONG.format("--max_length")),
    ("ruler.__main__", "--lengths=513", TOO_LONG.format("--lengths")),
    ("probe", "--haystack=TEXT --needles=16 --digits=9 --answer_budget=400", "model=gpt2: has 512 positions, "),
    ("lines", "", TOO_LONG.format("--lengths").replace("513", "1024")),  # no option, as the user named none
]

CFG = DecoderConfig(d_model=16, n_layers=2, n_heads=2, n_kv_heads=2, d_ff=32, vocab_size=64, tie_embeddings=False)


def command(name, words, capsys):
    capsys.readouterr()  # what writing the model has shown
    status = importlib.import_module(f"eval.{name}").main([str(word) for word in words])
    return status, *capsys.readouterr()


@pytest.mark.parametrize(("name", "words", "line"), REFUSED)
def test_what_a_table_of_positions_does_not_hold_is_one_line(
    name, words, line, foreign, capsys, tmp_path, text_file, monkeypatch
):
    monkeypatch.setattr("eval.lines.BUDGET", 500)
    words = [foreign("gpt2"), *words.replace("TEXT", str(text_file)).split(), "-o", tmp_path]
    status, out, err = command(name, words, capsys)
    assert (status, out, err.count("\n"), err[: len(line)]) == (2, "", 1, line)


def test_lengths_left_out_are_within_the_table(foreign, capsys, tmp_path, text_file):
    words = {"passkey": ["--depths=2", "--tests=1"], "entropy": ["--texts=1", f"--text={text_file}"]}
    words["probe"] = ["--tests=1", f"--haystack={text_file}", "--threshold=0.01"]
    longest = {"passkey": "length", "entropy": "visible", "probe": "length"}
    for name, options in words.items():
        status, out, err = command(name, [foreign("gpt2"), *options, "-o", tmp_path / name, "--json"], capsys)
        assert status == 0, err
        lengths = [row.get(longest[name], 0) for row in json.loads(out)["rows"]]
        assert TABLE / 4 <= max(lengths) <= TABLE


def announced(tests, capsys, monkeypatch, window=512):
    timed = []
    monkeypatch.setattr(subjects, "measure_seconds", lambda subject, tokens: timed.append(tokens) or 1.0)
    subject = SimpleNamespace(model=SimpleNamespace(decoder=SimpleNamespace(cfg=CFG), train_len=window))
    subjects.announce(subject, "passkey", "test", tests)
    return timed, capsys.readouterr().err


def test_the_cost_is_named_where_it_is_more_than_a_minute_and_little_work_is_not_timed(capsys, monkeypatch):
    assert announced([(10, 512)], capsys, monkeypatch) == announced([], capsys, monkeypatch) == ([], "")
    monkeypatch.setattr(subjects, "SLOWEST", 0.0)
    assert announced([(59, 512)], capsys, monkeypatch) == ([512], "")
    line = "passkey: 600 tests, 307,200 tokens: about 10 min at most\n"
    assert announced([(500, 512), (100, 512)], capsys, monkeypatch) == ([512], line)
    # a matrix parameter takes 2 operations, a visible key 4 a layer and unit of width; of n tokens n / 2 are visible
    matrices = 2 * (4 * 16 * 16 + 3 * 16 * 32) + 16 * 64
    whole, timed = (n * (2 * matrices + 4 * 2 * 16 * n / 2) for n in (8192, 512))
    minutes = round(100 * whole / timed / 60)
    factor = "the longest has 8,192, 16.0 times the window of 512"
    line = f"passkey: 100 tests, 819,200 tokens: about {minutes} min at most; {factor}\n"
    assert announced([(100, 8192)], capsys, monkeypatch) == ([512], line)


@pytest.mark.parametrize(("reply", "goes_on"), [("y\n", True), ("\n", False), ("", False)])
def test_a_person_is_asked_before_tests_beyond_eight_windows(reply, goes_on, capsys, monkeypatch):
    """8 * 64 = 512 tokens are not beyond 8 windows of 64; a batch, whose input is no terminal, is never asked."""
    assert announced([(1, 513)], capsys, monkeypatch, window=64)[1] == ""
    terminal = SimpleNamespace(isatty=lambda: True, readline=lambda: reply)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert announced([(1, 512)], capsys, monkeypatch, window=64)[1] == ""
    if goes_on:
        assert "8.0 times the window of 64" in announced([(1, 513)], capsys, monkeypatch, window=64)[1]
    else:
        with pytest.raises(KeyboardInterrupt):
            announced([(1, 513)], capsys, monkeypatch, window=64)
