"""Retrieval accuracy by depth: cells and thirds by hand, and a model that sees only the last tokens."""

from pathlib import Path

import pytest
from scipy.stats import beta

from eval.engine.depths import depth_rows, find_cell, third_rows
from eval.probe import main
from tests.eval.answering import Counted, silent
from tests.eval.commands import rows_in, runner, size_of

THIRDS = ["0-33%", "33-66%", "66-99%"]


def test_a_needle_stays_in_its_own_part():
    """Cells of 0.99 / 8: the second needle's depths begin at 0.2475."""
    assert [find_cell(depth, 1, 4, 8) for depth in (0.2475, 0.3712, 0.3713, 0.4949)] == [2, 2, 3, 3]
    assert [find_cell(depth, 1, 4, 8) for depth in (0.2, 0.247, 0.495, 0.5)] == [2, 2, 3, 3]  # as roundings leave them
    assert [find_cell(depth, 0, 1, 10) for depth in (0.0, 0.098, 0.1, 0.5, 0.9899, 0.99)] == [0, 0, 1, 5, 9, 9]


def row_of(test, depths, hits):
    return {"length": 64, "test": test, "depths": depths, "found_each": hits}


TESTS = [
    row_of(1, [0.1, 0.4, 0.6, 0.9], [0, 1, 1, 1]),
    row_of(2, [0.2, 0.3, 0.7, 0.8], [0, 0, 1, 1]),
    row_of(3, [0.0, 0.3, 0.5, 0.98], [1, 1, 1, 1]),
    row_of(4, [0.1, 0.4, 0.6, 0.8], [1, 1, 1, 0]),
]


def test_depths_by_hand():
    rows = depth_rows(TESTS, 8)
    assert [row["n"] for row in rows] == [3, 1, 2, 2, 3, 1, 2, 2]
    assert [row["found"] for row in rows] == [2, 0, 1, 2, 3, 1, 1, 2]
    assert [row["score"] for row in rows[:3]] == [2 / 3, 0.0, 0.5]
    assert [(row["from_depth"], row["to_depth"]) for row in rows[:2]] == [(0.0, 0.12375), (0.12375, 0.2475)]
    for row in rows:  # Clopper, Pearson
        n, k = row["n"], row["found"]
        low, high = (beta.ppf(0.025, k, n - k + 1) if k else 0.0), (beta.ppf(0.975, k + 1, n - k) if k < n else 1.0)
        assert (row["low"], row["high"]) == pytest.approx((low, high), abs=1e-9)
    empty = depth_rows(TESTS[:1], 12)[0]
    assert (empty["n"], empty["score"], empty["low"], empty["high"]) == (0, None, None, None)


def test_thirds_by_hand():
    rows = third_rows(TESTS, 0)
    assert [row["third"] for row in rows] == THIRDS
    assert [(row["n"], row["failures"]) for row in rows] == [(3, 2), (3, 0), (3, 1)]  # one of each test that misses any
    assert [row["score"] for row in rows] == [2 / 3, 0, 1 / 3]
    nothing = third_rows(TESTS[2:3], 0)
    assert [(row["n"], row["score"]) for row in nothing] == [(0, None)] * 3


def test_the_missed_number_that_counts_is_drawn_evenly_and_by_the_tests_own_seed():
    tests = [row_of(k, [0.1, 0.4, 0.6, 0.9], [0, 0, 1, 0]) for k in range(1200)]
    rows = third_rows(tests, 5)
    assert min(row["failures"] for row in rows) > 320  # five standard deviations
    assert max(row["failures"] for row in rows) < 480
    halves = [third_rows(part, 5) for part in (tests[600:], tests[:600])]
    assert [a["failures"] + b["failures"] for a, b in zip(*halves, strict=True)] == [row["failures"] for row in rows]
    assert third_rows(tests, 6) != third_rows(tests, 5)


run = runner(main, "probe")
SMALL = ["--by=depth", "--lengths=320,200", "--tests=3", "--answer_budget=24"]


def test_the_command_writes_rows_tables_and_a_picture(run_folder, tmp_path, capsys, monkeypatch):
    pytest.importorskip("altair")
    Counted(monkeypatch, greedy=silent)
    status, out, _ = run([run_folder, *SMALL, "--plot", "-o", tmp_path], capsys)
    assert status == 0
    rows = rows_in(*tmp_path.glob("heatmap-*.jsonl"))
    cells = [row for row in rows if row["metric"] == "found_by_depth"]
    assert [row["length"] for row in cells] == [200] * 12 + [320] * 12
    assert {(row["tests"], row["found"], row["model"], row["method"], row["seed"], row["depths"]) for row in cells} == {
        (3, 0, "tiny", "rope+plain", 0, 12)
    }
    assert sum(row["n"] for row in cells) == 2 * 3 * 4
    thirds = [row for row in rows if row["metric"] == "failures_by_third"]
    assert [(row["length"], row["third"]) for row in thirds] == [(n, third) for n in (200, 320) for third in THIRDS]
    assert {(row["n"], row["accuracy"]) for row in thirds} == {(3, 0.0)}
    assert out.startswith("tiny: rope+plain; protocol ours, 3 tests a length\n")
    assert size_of(Path(out.splitlines()[-1].removeprefix("picture: ")))[0] > 500


def test_tests_of_the_probe_are_shared(run_folder, tmp_path, capsys, monkeypatch):
    counted, words = Counted(monkeypatch, greedy=silent), [run_folder, *SMALL, "-o", tmp_path]
    settings = ["--tests=2", "--step=320", "--max_length=320", "--answer_budget=24"]
    assert main([str(run_folder), *settings, "-o", str(tmp_path)]) == 0
    assert (run(words, capsys)[0], counted.prompts) == (0, 6), "four beside the probe's two"
    assert run([*words, "--depths=4", "--required=3"], capsys)[0] == 0
    assert counted.prompts == 6
    assert run([*words, "--seed=1"], capsys)[0] == 0
    assert counted.prompts == 12
