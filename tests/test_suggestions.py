"""A wrong command line names the command or the value that is right, in one line."""

import re
from functools import partial
from pathlib import Path

import pytest

from eval.distance import main as distance
from eval.reach import main as reach
from lab.cli import main as probe_lab
from lab.config import load_experiment
from lab.core.command import CommandSpec
from lab.core.errors import ConfigError
from lab.sweep.planning import plan_sweep
from tests.forked import ROOT

CONFIG, SWEEP = ROOT / "configs/cpu_test.yaml", ROOT / "sweeps/windows_mini.yaml"
ANSWERED = {  # what is called in a folder without configs/, and the line
    "one_dash": (lambda: CommandSpec(flags={"--resume": ""}).read(["a.yaml", "-resume"]), "-resume: .*; write --.*"),
    "no_config": (lambda: load_experiment(Path("nope.yaml")), ".*configs/"),
    "config_by_name": (lambda: load_experiment(Path("configs/cpu_short.yaml")), r".*did you mean cpu_short\?"),
    "config_by_path": (lambda: load_experiment(Path("mine/owm.yaml")), r".*did you mean mine/own\.yaml\?"),
    "sweep_elsewhere": (lambda: plan_sweep(SWEEP, {}), "configs/cpu_short.yaml: .*"),
    "letters": (lambda: load_experiment(CONFIG, {"train.tokens": "1K"}), 'train.tokens="1K": must be a whole .*'),
    "no_sweep": (lambda: plan_sweep(SWEEP.relative_to(ROOT), {}), "sweeps/windows_mini.yaml: .*"),
}
MIXTURES = {  # the entries of data.corpus, and the line after its name
    "no_corpus": ([], r"=\[0 entries\]: must list two corpora or more.*; .*"),
    "one_corpus": ([{"path": "a", "weight": 1}], r"=\[1 entries\]: must list two corpora or more.*; .*"),
    "no_weight": ([{"path": "a", 1: 2}, {"path": "b", "weight": 1}], r"\.0\.weight: must be set; .*"),
    "other_name": ([{"path": "a", "wieght": 2}], r"\.0\.wieght=2: .*; did you mean data\.corpus\.0\.weight\?"),
    "weight_0": ([{"path": "a", "weight": 0}, {"path": "b", "weight": 1}], r"\.0\.weight=0: must be > 0; .*"),
    "entry": ([{"path": "a", "pth": 1, "weight": 1}], r"\.0\.pth=1: .*mean data\.corpus\.0\.path\?"),
}
for name, (entries, line) in MIXTURES.items():
    ANSWERED[name] = (partial(load_experiment, CONFIG, {"data.corpus": entries}), rf"data\.corpus{line}")


@pytest.mark.parametrize(("read", "line"), ANSWERED.values(), ids=ANSWERED)
def test_a_mistake_is_one_line_with_what_is_right(read, line, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/own.yaml").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        read()
    assert re.fullmatch(line, str(error.value))


@pytest.mark.parametrize("command", [distance, reach])
def test_a_run_is_found_by_its_name_and_a_pattern_is_called_one(command, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs/cpu_demo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert command(["cpu_demo"]) == 2
    assert capsys.readouterr().err == "cpu_demo: no such folder; did you mean runs/cpu_demo?\n"
    assert command(["runs/none-*"]) == 2
    assert capsys.readouterr().err.startswith("runs/none-*: matches no folder; use ")


def test_the_version_is_that_of_the_project(capsys):
    assert probe_lab(["--version"]) == 0
    assert capsys.readouterr().out == "probe-lab 0.1.0\n"
