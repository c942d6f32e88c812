"""A wrong command line names the command or the value that is right, in one line."""

from pathlib import Path

import pytest

from eval.distance import main as distance
from eval.reach import main as reach
from lab.cli import main as probe_lab
from lab.config import load_experiment
from lab.core.command import CommandSpec
from lab.core.errors import ConfigError
from lab.sweep.planning import plan
from tests.forked import ROOT

CONFIG, SWEEP = ROOT / "configs/cpu_test.yaml", ROOT / "sweeps/windows_mini.yaml"


def test_a_sweep_and_a_config_that_are_swapped_name_the_command():
    for read, path, command in ((load_experiment, SWEEP, "sweep"), (lambda path: plan(path, {}), CONFIG, "fit")):
        with pytest.raises(ConfigError) as error:
            read(path)
        assert len(error.value.errors) == 1
        assert str(error.value).endswith(f"run probe-lab {command} {path}")


@pytest.mark.parametrize(("text", "number"), [("1K", "1_000"), ("3m", "3_000_000"), ("2B", "2_000_000_000")])
def test_a_number_with_a_unit_is_written_out(text, number):
    with pytest.raises(ConfigError, match=f'train.tokens="{text}": must be a whole number; write {number}$'):
        load_experiment(CONFIG, {"train.tokens": text})


def test_one_dash_is_answered_with_two():
    with pytest.raises(ConfigError, match="^-resume: .*; write --resume$"):
        CommandSpec(flags=("--resume",)).read(["a.yaml", "-resume"])


@pytest.mark.parametrize("command", [distance, reach])
def test_a_run_is_found_by_its_name_and_a_pattern_is_called_one(command, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs/cpu_demo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert command(["cpu_demo"]) == 2
    assert capsys.readouterr().err == "cpu_demo: no such folder; did you mean runs/cpu_demo?\n"
    assert command(["runs/none-*"]) == 2
    assert capsys.readouterr().err.startswith("runs/none-*: matches no folder; use ")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("nope.yaml", None), ("configs/cpu_short.yaml", "cpu_short"), ("mine/owm.yaml", "mine/own.yaml")],
)
def test_a_config_is_suggested_by_its_name_without_the_ending(name, meant, tmp_path, monkeypatch):
    """In a folder without configs/: those of the package go by their names, those of the folder by their paths."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/own.yaml").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        load_experiment(Path(name))
    assert str(error.value).endswith("configs/" if meant is None else f"did you mean {meant}?")


def test_a_sweep_that_is_started_elsewhere_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"^configs/cpu_short.yaml: .*; run cd {ROOT}, ") as error:
        plan(SWEEP, {})
    assert len(error.value.errors) == 1
    with pytest.raises(ConfigError, match="sweeps/windows_mini.yaml: .*"):
        plan(SWEEP.relative_to(ROOT), {})


def test_the_version_is_that_of_the_project(capsys):
    assert probe_lab(["--version"]) == 0
    assert capsys.readouterr().out == "probe-lab 0.1.0\n"
