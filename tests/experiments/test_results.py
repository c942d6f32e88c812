"""The tables of docs/demand.md are those that the commands print from the records."""

from pathlib import Path

import pytest

from eval.engine.methods import read_distance
from experiments.demand import __main__ as demand
from experiments.demand.results import describe as describe_demand
from experiments.miniature import __main__ as miniature
from experiments.miniature.results import describe as describe_miniature
from experiments.miniature.results import methods_at
from lab.positions.methods import describe as describe_method
from lab.sweep.planning import plan
from tests.forked import ROOT


@pytest.mark.parametrize(
    ("module", "describe", "heading"),
    [
        (demand, describe_demand, "## Retrieval demand at equal position frequency"),
        (miniature, describe_miniature, "## The miniature"),
    ],
    ids=["demand", "miniature"],
)
def test_the_tables_of_the_page_are_those_of_the_records(module, describe, heading, capsys):
    describe(ROOT / module.RECORDS)
    below = (ROOT / "docs/demand.md").read_text("utf-8").split(f"\n{heading}\n")[1]
    command = module.__name__.removesuffix(".__main__")
    assert below.split("```")[1] == f"\n{capsys.readouterr().out}", f"run python -m {command} --results -o docs"


@pytest.mark.parametrize("window", [128, 192, 256])
def test_a_run_is_tested_under_the_methods_that_its_records_name(window, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    runs = plan(Path("sweeps/windows_mini.yaml"), {"run.folder": str(tmp_path)})
    run = next(run for run in runs if run.experiment.data.window == window)
    words = [option.removeprefix("--distance=") for option in miniature.test_options(run)]
    found = [describe_method(read_distance(word, window, window)) for word in words]
    assert found == [*methods_at(window).values()]
