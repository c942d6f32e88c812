"""Every evaluation takes the shared options, refuses by name those that make no sense for it, and prints JSON."""

import importlib
import json
from pathlib import Path

import pytest

from lab import cli
from tests.eval.report.fakes import write_fake
from tests.eval.test_reach import write_runs
from tests.forked import ROOT
from tests.runs.test_picture import size_of

METHOD, FREQUENCY, TEXT, PLOT = "--distance=rerope:window=9", "--frequency=ntk:factor=2", "--text=TEXT", "--plot"
MODEL = (METHOD, FREQUENCY, TEXT, PLOT)
HAYSTACK = ("RUN", "--tests=1", "--haystack=TEXT", "-o", "OUT")
COMMANDS = {  # words that measure little; of the shared options those that are taken, the others are refused
    "probe": (("RUN", "--tests=1", "--max_length=160", "--step=160", "--answer_budget=24"), MODEL),
    "distance": (("RUN", "--tests=1", "--points=2", "--window=96", "--digits=2"), MODEL),
    "heatmap": (("RUN", "--tests=1", "--lengths=160", "--digits=2", "--answer_budget=24"), MODEL),
    "methods": (("RUN", "--tests=1", "--lengths=200", "--methods=rope,string", "--digits=2"), (TEXT, PLOT)),
    "ruler": (("RUN", "--tests=1", "--tasks=niah_single_2", "--lengths=512"), MODEL),
    "passkey": (("RUN", "--tests=1", "--protocol=lab", "--lengths=128", "--depths=2", "--digits=2"), MODEL),
    "lines": (("RUN", "--tests=1", "--lines=4"), (METHOD, FREQUENCY, PLOT)),
    "perplexity": (("RUN", "--documents=1", "--lengths=16", "--tokens=64"), MODEL),
    "entropy": (("RUN", "--texts=1", "--lengths=16"), MODEL),
    "precision": (("RUN", "--texts=1", "--length=16", "--lengths=16", "--shifts=0"), MODEL),
    "impact": (("RUN", "RUN", "--windows=2", "--length=16", "--min_count=1", "-o", "OUT"), (TEXT, PLOT)),
    "compare": (("ROWS",), ()),
    "reach": (("RUNS", "--at=64", "--resamples=100"), (PLOT,)),
    "report": (("FAKE",), ()),
    "plan": (("--window=64",), (PLOT,)),
    "shape": (("SHAPE",), (PLOT,)),
    "positions": (("string:shift=3,window=0", "--length=9"), (PLOT,)),
    "harness": (("RUN", "--tasks=x"), (METHOD, FREQUENCY)),
}
ROW = {"metric": "passkey", "model": "m", "method": "rope+plain", "depth": 0.5, "length": 8, "n": 4, "score": 0.5}
LONG = ("harness", "shape")  # measured in tests of their own
MEASURED = ("heatmap", "methods", "passkey", "lines", "perplexity")  # scores, each with its limits
COLUMNS = {"model", "checkpoint", "weights", "commit", "hardware", "method", "precision", "protocol", "length", "n"}
COLUMNS |= {"score", "low", "high", "seed", "seconds"}
NEEDS = {"harness": "lm_eval", "report": "altair"}


def main_of(name):
    package = f"eval.{name}.__main__" if (ROOT / "eval" / name).is_dir() else f"eval.{name}"
    return importlib.import_module(package).main


@pytest.fixture
def words_for(run_folder, text_file, tmp_path, monkeypatch):
    """Make words that name what is there, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    places = {"RUN": run_folder, "TEXT": text_file, "OUT": tmp_path / "out", "FAKE": tmp_path / "fake"}
    places |= {"SHAPE": ROOT / "configs" / "shape_demo.yaml", "ROWS": tmp_path / "rows.jsonl", "RUNS": "runs/*"}

    def make(words):
        if "FAKE" in words and not places["FAKE"].exists():
            write_fake(places["FAKE"])
        if "RUNS" in words and not (tmp_path / "runs").exists():
            write_runs(tmp_path / "runs")
        (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
        first = [str(places.get(word, word)) for word in words]
        return [word.replace("=TEXT", f"={text_file}") for word in first]

    return make


def test_every_evaluation_is_in_the_table():
    found = {name for name, (module, _) in cli.COMMANDS.items() if module.startswith("eval.")}
    assert found - {"papers"} == set(COMMANDS)  # which runs the others


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "report" else ()) for name in COMMANDS if name not in LONG],
)
def test_json_is_one_object_and_nothing_else(name, words_for, capsys):
    words, taken = COMMANDS[name]
    pytest.importorskip("matplotlib" if PLOT in taken else NEEDS.get(name, "json"))
    assert main_of(name)(words_for([*words, *taken, "--json"])) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (list(found), found["command"]) == (["command", "rows", "files", "pictures"], f"eval.{name}")
    assert bool(found["pictures"]) == (PLOT in taken)
    assert all(min(size_of(Path(path))) > 300 for path in found["pictures"])
    assert found["rows"]
    assert all(isinstance(row, dict) for row in found["rows"])
    for row in found["rows"] if name in MEASURED else ():
        assert set(row) >= COLUMNS
        assert (row["model"], row["precision"], len(row["weights"])) == ("tiny", "float32", 16)
        assert row["checkpoint"].startswith("tokens-")
        assert None in (row["score"], row["low"]) or row["low"] <= row["score"] <= row["high"]
    if METHOD in taken:
        assert {row["method"] for row in found["rows"]} == {"ntk(factor=2)+rerope(window=9)"}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_makes_no_sense_is_refused_by_name(name, words_for, capsys):
    words, taken = COMMANDS[name]
    for option in {*MODEL} - {*taken}:
        assert main_of(name)(words_for([*words, option])) == 2
        out, err = capsys.readouterr()
        line = f"{option.replace('=TEXT', '=')}"
        assert (out, err.count("\n"), err.startswith(line)) == ("", 1, True), err
        assert err.endswith("; leave it out\n")


def test_help_lists_what_a_command_takes(capsys):
    for name, (_, taken) in COMMANDS.items():
        assert main_of(name)(["--help=all"]) == 0
        listed = capsys.readouterr().out
        for option in MODEL:
            assert (f"  {option.partition('=')[0]}" in listed) == (option in taken), (name, option)
        assert "  --json\n" in listed


def test_several_models_are_named_by_a_pattern_or_braces(run_folder, tmp_path, capsys):
    (tmp_path / "again").symlink_to(run_folder)
    (tmp_path / "alike").symlink_to(run_folder)
    words = ["--documents=1", "--lengths=16", "--tokens=64", "--json", "-o", str(tmp_path / "out")]
    for pattern in ("a*", "{again,alike}"):
        assert main_of("perplexity")([str(tmp_path / pattern), *words]) == 0
        assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
    assert main_of("perplexity")([str(tmp_path / "b*"), *words]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'b*'}: matches nothing; give folders that exist\n"
    assert main_of("perplexity")([str(run_folder), str(tmp_path / "none"), *words]) == 2
    assert capsys.readouterr().out == ""


def test_help_of_a_section_has_methods_as_headings(capsys):
    assert main_of("lines")(["--help=position"]) == 0
    listed = capsys.readouterr().out
    assert "\n  --position.distance.method=string\n" in listed
    assert "\n    --position.distance.shift=required\n" in listed
    assert "--tests" not in listed
    assert main_of("lines")(["--help=positon"]) == 2
    assert capsys.readouterr() == ("", "--help=positon: no such section; did you mean position?\n")
