"""Names of conditions: one set of words in figures, tables and pages."""

from pathlib import Path

import pytest

from eval.compare import main as compare
from eval.reach import main as reach
from eval.report.data import read_runs
from experiments.window.figures import CONDITIONS
from lab.runs.arms import name_arms
from lab.runs.conditions import DEFINITIONS, define_names
from lab.runs.tables import unpacked

S1 = Path("experiments/demand/records/S1.jsonl.xz")


def test_intervals_that_do_not_start_at_zero_are_not_called_far():
    rows = {keep: {"weights.by": "evidence", "weights.keep": keep} for keep in ("[[0, 64]]", "[[32, 64]]")}
    assert name_arms(rows)["[[0, 64]]"].startswith("far-masked, keeping [[0,64]]")
    assert name_arms(rows)["[[32, 64]]"].startswith("masked outside, keeping [[32,64]]")


@pytest.mark.parametrize("command", [reach, compare])
def test_tables_define_their_names_in_lines_of_120_characters(command, capsys):
    assert command([str(S1)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("unmasked", "far-masked", "near-masked", "matched control"):
        assert f"{name}: {DEFINITIONS[name]}" in lines
    assert max(map(len, lines)) <= 120


def test_the_report_names_the_branches_of_s1_as_the_page_does():
    with unpacked([S1]) as runs:
        arms = read_runs(runs).arms
    assert {arm.removesuffix(", n = 5") for arm in arms} == set(CONDITIONS.values())
    assert len(define_names(arms)) == 5
