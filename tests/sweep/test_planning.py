"""Sweep files and their commands: which runs they are, and what is refused."""

import sys
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest

from lab.core.errors import ConfigError
from lab.core.yaml import format_yaml
from lab.runs.folder import RunFolder
from lab.sweep.planning import plan_command, plan_sweep
from tests.forked import ROOT
from tests.refusals import refused

SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))
COMMAND = "${env} ${interpreter} -m ${program} configs/cpu_test.yaml --resume --run.name=auto --track.wandb=online"


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def planned(tmp_path):
    """A function that plans the runs of parameters."""

    def runs(parameters, given=(), *, seeds=None, **more):
        command = [*COMMAND.split(), "${args}"]
        values = {"method": "grid", "parameters": parameters, "command": command, "program": "lab.fit", **more}
        (tmp_path / "sweep.yaml").write_text(format_yaml(values))
        return plan_sweep(tmp_path / "sweep.yaml", dict(given), seeds=seeds)

    return runs


@pytest.mark.parametrize("path", SWEEPS, ids=[path.stem for path in SWEEPS])
def test_every_run_of_every_file_is_valid_and_has_a_name_of_its_own(path):
    runs = plan_sweep(path, {})
    assert len({run.path for run in runs}) == len(runs) > 1
    for run in runs:
        for key, value in run.swept.items():
            assert reduce(getitem, key.split("."), run.experiment.to_dict()) == value


TWICE = "parameters: {optim.lr: {value: 1}, optim: {parameters: {lr: {values: [2, 3]}}}}"
FAULTS = {
    "bayes\nparameters: {a: {value: 1}}": "method=bayes: must be 'grid'",
    "grid\nearly_terminate: {type: hyperband}": "early_terminate: needs wandb's server; remove it",
    "grid\nparameters: {}": "parameters={}: must hold settings",
    f"grid\n{TWICE}": "parameters.optim.lr: is there twice",
    "grid\nparameters: {a: {distribution: log_uniform_values, min: 1, max: 2}}": 'parameters.a={"distribution": "log_u',
}
for form in ('{"min": 1, "max": 2}', '{"value": 1, "q": 2}', "3", '{"values": []}'):
    FAULTS[f"grid\nparameters: {{a: {form}}}"] = f"parameters.a={form}: must have value or values"


@pytest.mark.parametrize(("text", "line"), FAULTS.items(), ids=FAULTS)
def test_what_is_refused(tmp_path, text, line):
    path = tmp_path / "sweep.yaml"
    path.write_text(f"command: [-m, lab.fit, configs/cpu_test.yaml]\nmethod: {text}")
    with refused(line, error=ConfigError):
        plan_sweep(path, {})


def test_a_grid_is_the_product_by_name_the_last_name_fastest(planned):
    parameters = {"run.seed": {"values": [5, 4]}, "data.window": {"values": [95, 96]}, "mask": {"value": {}}}
    found = [tuple(run.swept.values()) for run in planned(parameters)]
    assert found == [(window, {}, seed) for window in (95, 96) for seed in (5, 4)]
    assert [tuple(run.swept.values()) for run in planned(parameters, run_cap=3)] == found[:3]
    assert [run.experiment.run.seed for run in planned(parameters, seeds=1)] == [0, 0]
    with pytest.raises(ConfigError, match=r"make more than 10,000 runs"):
        planned(parameters, seeds=10**9)


def test_a_command_whose_settings_cannot_be_read_is_refused():
    run = ["${interpreter}", "-c", "open('ran', 'w')", "lab.fit", "a.yaml"]
    for words in (run, ["bash", "-c", "python -m lab.fit a.yaml"], ["python", "-m", "lab.prepare", "a.yaml"]):
        with pytest.raises(ConfigError, match=r"command=.*must start lab.fit"):
            plan_command(words, {}, {})


def test_settings_given_go_to_every_run_and_those_for_wandb_stay_there(planned):
    seeds = {"run.seed": {"values": [4]}}
    (run,) = planned(seeds, {"train.tokens": 8192, "run.folder": "elsewhere"})
    assert run.experiment.track.wandb == "off"
    assert (run.experiment.run.seed, run.experiment.train.tokens, run.path.parent) == (4, 8192, Path("elsewhere"))
    with pytest.raises(ConfigError, match=r"--run.seed=1: is a parameter of the sweep"):
        planned(seeds, {"run.seed": 1})
    with pytest.raises(ConfigError, match=r"run.name=cpu_test-\w+: is that of two runs"):
        planned({"run.seed": {"values": [1, 1]}})


def test_the_words_of_a_run_read_back_to_the_same_run():
    settings = {"optim.min_lr": 3e-05, "optim": {"beta2": 0.9}, "start": None, "mask": {"method": "causal"}}
    settings |= {"train.recompute": True, "train.threads": None, "run.name": "7", "data.folder": "a b\u00e9"}
    words = ["env", "python", "-m", "lab.fit", "configs/cpu_test.yaml"]
    run = plan_command(words, settings, {})
    assert run.command(1)[:5] == [sys.executable, *words[2:], "--resume"]
    again = plan_command(run.command(1), {"train.threads": None}, {})
    assert (again.experiment, again.path.name) == (run.experiment, "7")


def test_threads_are_those_set_or_begun_with_or_a_part_of_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    words = ["lab.fit", "configs/cpu_test.yaml"]
    where = {"run.folder": str(tmp_path), "train.threads": None}
    free, bound = (plan_command(words, where | more, {}) for more in ({}, {"train.threads": 3}))
    assert [free.threads(3), free.threads(16), bound.threads(2)] == [2, 1, 3]
    assert "--train.threads=2" in free.command(3)
    RunFolder(free.path).path.mkdir()
    (free.path / "environment.json").write_text('{"threads": 5}')
    assert free.threads(3) == 5
