"""The tables of docs/demand.md are those that the commands print from the records."""

from pathlib import Path

import pytest

from eval.engine.methods import read_distance
from experiments.demand import __main__ as demand
from experiments.demand.results import describe as describe_demand
from experiments.miniature import __main__ as miniature
from experiments.miniature.results import describe as describe_miniature
from experiments.miniature.results import methods_at
from experiments.window import __main__ as window
from experiments.window.records import read_records
from experiments.window.results import describe as describe_window
from lab.positions.methods import describe as describe_method
from lab.sweep.planning import plan
from tests.forked import ROOT


def describe_findings(records):
    describe_window(read_records(records))


@pytest.mark.parametrize(
    ("page", "module", "describe", "heading"),
    [
        ("demand.md", demand, describe_demand, "## Retrieval demand at equal position frequency"),
        ("demand.md", miniature, describe_miniature, "## The miniature"),
        ("findings.md", window, describe_findings, "## Results"),
    ],
    ids=["demand", "miniature", "window"],
)
def test_the_tables_of_the_page_are_those_of_the_records(page, module, describe, heading, capsys):
    describe(ROOT / module.RECORDS)
    printed = capsys.readouterr().out
    below = (ROOT / "docs" / page).read_text("utf-8").split(f"\n{heading}\n")[1]
    command = module.__name__.removesuffix(".__main__")
    assert below.split("```")[1] == f"\n{printed}", f"run python -m {command} --results -o docs"
    assert max(map(len, printed.splitlines())) <= 120


@pytest.mark.parametrize("size", [128, 192, 256])
def test_a_run_is_tested_under_the_methods_that_its_records_name(size, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    runs = plan(Path("sweeps/windows_mini.yaml"), {"run.folder": str(tmp_path)})
    run = next(run for run in runs if run.experiment.data.window == size)
    words = [option.removeprefix("--distance=") for option in miniature.test_options(run)]
    found = [describe_method(read_distance(word, size, size)) for word in words]
    assert found == [*methods_at(size).values()]
