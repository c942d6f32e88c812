"""Every evaluation's rows say what was measured, on what and with what, in the same words, and stand in one table."""

import json
from pathlib import Path

import pytest

from eval.compare.__main__ import main as compare
from eval.harness import __main__ as harness
from eval.heatmap import __main__ as heatmap
from eval.lines import __main__ as lines
from eval.methods import __main__ as methods
from eval.passkey import __main__ as passkey
from eval.perplexity import __main__ as perplexity
from eval.probe import __main__ as probe
from eval.ruler.__main__ import main as ruler

ALL = ("model", "checkpoint", "weights", "commit", "hardware", "method", "precision")
ALL += ("protocol", "length", "n", "score", "low", "high", "seed", "seconds")
NEEDLES = ["--tests=2", "--answer_budget=24"]
COMMANDS = {
    "probe": (probe.main, [*NEEDLES, "--max_length=192", "--step=64"]),
    "heatmap": (heatmap.main, [*NEEDLES, "--lengths=192"]),
    "methods": (methods.main, [*NEEDLES, "--lengths=192", "--methods=rope,string"]),
    "ruler": (ruler, ["--tests=2", "--answer_budget=40", "--tasks=vt", "--lengths=512"]),
    "perplexity": (perplexity.main, ["--documents=3", "--lengths=24", "--stride=8"]),
    "passkey": (passkey.main, ["--lengths=160", "--depths=2", "--tests=2"]),
    "lines": (lines.main, ["--lengths=700", "--tests=2", "--answer_budget=8"]),
    "harness": (
        harness.main,
        [
            "--tasks=lab_choice",
            f"--include_path={Path(__file__).parent / 'harness_tasks'}",
            "--run_own_code",
            "--limit=2",
        ],
    ),
}


@pytest.fixture(scope="module")
def folders(run_folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("rows")
    for name, (main, words) in COMMANDS.items():
        if name == "harness":
            pytest.importorskip("lm_eval")
        assert main([str(run_folder), *words, "-o", str(place / name)]) == 0
    return place


def rows_of(folder):
    files = [path for path in folder.glob("*.jsonl") if not path.name.startswith("tests-")]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_rows_of_every_evaluation(folders, run_folder, name):
    rows = [row for row in rows_of(folders / name) if "effective_length" not in row]
    assert rows
    for row in rows:
        assert set(ALL) <= set(row), set(ALL) - set(row)
        assert (row["model"], row["precision"], row["seed"]) == (run_folder.name, "float32", row["seed"])
        assert row["checkpoint"].startswith("tokens-")
        assert len(row["weights"]) == 16
        assert row["seconds"] > 0
        assert row["score"] is None or row["low"] <= row["score"] <= row["high"]
    assert len({(row["commit"], row["hardware"], row["weights"]) for row in rows}) == 1


def test_one_table_has_them_all(folders, capsys):
    assert compare([str(folders)]) == 0
    table = capsys.readouterr().out
    for name in ("probe", "heatmap", "thirds", "methods", "ruler", "perplexity", "passkey", "lines", "harness"):
        assert f"\n{name} " in table
    assert "left out" not in table
