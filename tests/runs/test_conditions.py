"""Names of conditions: one set of words in figures, tables and pages."""

import itertools
from collections import Counter
from pathlib import Path

import pytest

from eval.compare import main as compare
from eval.reach import main as reach
from eval.report.frames import read_runs
from lab.analysis.conditions import DEFINITIONS, define_names, find_conditions, name_conditions
from lab.analysis.table import read_result_table, unpacked

S1 = Path("experiments/demand/records/S1.jsonl.xz")


def test_intervals_that_do_not_start_at_zero_are_not_called_far():
    rows = {keep: {"weights.by": "evidence", "weights.keep": keep} for keep in ("[[0, 64]]", "[[32, 64]]")}
    assert name_conditions(rows)["[[0, 64]]"].startswith("far-masked, keeping [[0,64]]")
    assert name_conditions(rows)["[[32, 64]]"].startswith("masked outside, keeping [[32,64]]")


@pytest.mark.parametrize("command", [reach, compare])
def test_tables_define_their_names_in_lines_of_120_characters(command, capsys):
    assert command([str(S1)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("unmasked", "far-masked", "near-masked", "matched control"):
        assert f"{name}: {DEFINITIONS[name]}" in lines
    assert max(map(len, lines)) <= 120


def test_the_report_names_the_branches_of_s1_as_the_page_does():
    with unpacked([S1]) as runs:
        conditions = read_runs(runs).conditions
    names = {"base model", "unmasked", "far-masked", "near-masked", "matched control"}
    assert {condition.removesuffix(", n = 5") for condition in conditions} == names
    assert len(define_names(conditions)) == 5


def test_seeds_with_texts_and_bases_of_their_own_are_replicates():
    """On S2 every seed has its own folder of texts and its own base; 15 runs are three conditions of five."""
    with unpacked([Path("experiments/window/records/S2.jsonl.xz")]) as runs:
        conditions = read_result_table(runs).conditions.values()
    sizes = Counter(condition.name for condition in conditions)
    assert sorted(sizes.values()) == [5, 5, 5]
    assert sorted(sizes) == ["base model", "text A.jsonl, far-masked", "text B.jsonl, unmasked"]


def test_numbers_of_paths_count_where_two_runs_of_one_seed_would_be_one_condition():
    settings = {}
    for path, seed in itertools.product((1000, 2000), range(2)):
        settings[f"runs/{path}-{seed}"] = {"run.seed": seed, "start.path": f"models/step_{path}"}
    names = {name: condition.name for name, condition in find_conditions(settings).items()}
    assert sorted(Counter(names.values()).items()) == [("from step_1000", 2), ("from step_2000", 2)]
    one = {name: row for name, row in settings.items() if name in ("runs/1000-0", "runs/2000-1")}
    assert {condition.name for condition in find_conditions(one).values()} == {"all"}
    loop = {"a": {"start.path": "b", "run.seed": 0}, "b": {"start.path": "a", "run.seed": 0}}
    assert len(find_conditions(loop)) == 2, "runs of somebody else that start from one another"
