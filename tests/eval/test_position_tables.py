"""Tests that are longer than a model's table of positions are refused in one line."""

import importlib
import json

import pytest

TABLE = 512  # positions of the models of `foreign`
BEYOND = {
    "passkey": "--lengths=513",
    "lines": "--lengths=513",
    "entropy": "--lengths=513",
    "perplexity": "--lengths=64,513",
    "precision": "--length=513",
    "distance": "--window=513",
    "probe": "--max_length=513",
    "ruler.__main__": "--lengths=513",
}


def command(name, words, capsys):
    capsys.readouterr()  # what writing the model has shown
    status = importlib.import_module(f"eval.{name}").main([str(word) for word in words])
    return status, *capsys.readouterr()


@pytest.mark.parametrize("name", BEYOND)
def test_what_a_table_of_positions_does_not_hold_is_one_line(name, foreign, capsys, tmp_path):
    status, out, err = command(name, [foreign("gpt2"), BEYOND[name], "-o", tmp_path], capsys)
    option = BEYOND[name].partition("=")[0]
    assert (status, out, err) == (2, "", f"{option}=513: must be <= 512, the positions that gpt2 has; lower it\n")


def test_lengths_left_out_are_within_the_table(foreign, capsys, tmp_path, text_file):
    words = {"passkey": ["--depths=2", "--tests=1"], "entropy": ["--texts=1", f"--text={text_file}"]}
    words["probe"] = ["--tests=1", f"--haystack={text_file}", "--threshold=0.01"]
    longest = {"passkey": "length", "entropy": "visible", "probe": "length"}
    for name, options in words.items():
        status, out, err = command(name, [foreign("gpt2"), *options, "-o", tmp_path / name, "--json"], capsys)
        assert status == 0, err
        lengths = [row.get(longest[name], 0) for row in json.loads(out)["rows"]]
        assert TABLE / 4 <= max(lengths) <= TABLE


def test_a_table_too_short_for_any_needle_test_is_one_line(foreign, capsys, tmp_path, text_file):
    words = [foreign("gpt2"), f"--haystack={text_file}", "--needles=16", "--digits=9", "--answer_budget=400"]
    status, out, err = command("probe", [*words, "-o", tmp_path], capsys)
    assert (status, out, err.startswith("model=gpt2: has 512 positions, ")) == (2, "", True), err


def test_a_table_too_short_for_any_line_is_one_line_that_names_no_option(foreign, capsys, tmp_path, monkeypatch):
    """Lengths left out are not the user's, so that the line names the model."""
    monkeypatch.setattr("eval.lines.BUDGET", 500)
    status, out, err = command("lines", [foreign("gpt2"), "-o", tmp_path], capsys)
    assert (status, out, err.startswith("MODEL: has 512 positions, too few for line retrieval")) == (2, "", True), err


def test_a_length_that_a_measure_chooses_is_refused_as_well(foreign, capsys, tmp_path):
    words = [foreign("gpt2"), "--tasks=niah_single_1", "--tests=1", "--answer_budget=450", "-o", tmp_path]
    status, out, err = command("ruler.__main__", words, capsys)
    assert (status, out, err) == (2, "", "--lengths=1024: must be <= 512, the positions that gpt2 has; lower it\n")
