"""Sweep files and their commands: what is refused, and that the runs are those of wandb's engine and agent."""

import collections
import random
import sys
from pathlib import Path

import pytest
from scipy import stats

from lab.errors import ConfigError
from lab.schema import format_yaml
from lab.sweep.planning import expand, plan, read_command, setting
from lab.sweep.reading import Sweep, read_sweep

ROOT = Path(__file__).resolve().parents[2]
SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))
COMMAND = ["${env}", "${interpreter}", "-m", "${program}", "configs/cpu_test.yaml", "--resume", "--run.name=auto"]
ONLINE = "--track.wandb=online"
N = 400


def sweep(*settings, command=(*COMMAND, ONLINE, "${args}")):
    return Sweep(tuple(command), "lab.fit", settings)


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("path", SWEEPS, ids=[path.stem for path in SWEEPS])
def test_every_run_of_every_file_is_valid_and_has_a_name_of_its_own(path):
    runs = plan(read_sweep(path), {})
    assert len({run.path for run in runs}) == len(runs) > 1
    for run in runs:
        for key, value in run.swept.items():
            section = run.experiment.to_dict()
            for word in key.split("."):
                section = section[word]
            assert section == value


FAULTS = {
    "bayes": ("method: bayes\nparameters: {a: {value: 1}}", "method=bayes: must be one of 'grid' or 'random'; "),
    "early_terminate": ("method: grid\nearly_terminate: {type: hyperband}", "early_terminate: needs wandb's server; "),
    "unknown_key": ("method: grid\nparameter: {}\nparameters: {a: {value: 1}}", "parameter={}: unknown setting; "),
    "no_end": ("method: random\nparameters: {a: {min: 1, max: 2}}", "run_cap: must be set where method=random"),
    "no_grid": ("method: grid\nparameters: {a: {min: 1.0, max: 2}}", "parameters.a: has no list of values"),
    "unknown": ("method: grid\nparameters: {a: {distribution: normal}}", "parameters.a.distribution=normal: must be"),
    "text": ("method: grid\nparameters: {a: {min: low, max: 1}}", "parameters.a.min=low: must be a number; "),
    "infinite": ("method: grid\nparameters: {a: {min: 0, max: .inf}}", "parameters.a.max=inf: must be"),
    "endless": ("method: grid\nparameters: {a: {min: 1, max: 1000000000000}}", "make 1,000,000,000,000 runs"),
    "draws": ("method: random\nrun_cap: 20000\nparameters: {a: {min: 1, max: 2}}", "must be <= 10,000"),
    "backwards": ("method: grid\nparameters: {a: {min: 2, max: 1}}", "parameters.a.min=2: must be < max=1; "),
    "no_list": ("method: grid\nparameters: {a: {values: 3}}", "parameters.a.values=3: must be a list; "),
    "plain": ("method: grid\nparameters: {a: 3}", "parameters.a=3: must be a section; "),
    "odd_key": ("method: grid\nparameters: {a: {b: {c: 1}}}", "parameters.a.b="),
    "two": ("method: grid\nparameters: {a: {value: 1, min: 0, max: 2}}", "parameters.a.value: goes alone"),
    "empty": ("method: grid\nparameters: {}", "parameters={}: must hold settings"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line"), FAULTS.values(), ids=FAULTS)
def test_what_is_refused(tmp_path, text, line):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as found:
        read_sweep(path)
    assert line in found.value.faults[0], found.value.faults


def settings_of(tmp_path, method, parameters, **options):
    cap = {"run_cap": options.pop("run_cap")} if "run_cap" in options else {}
    path = tmp_path / "sweep.yaml"
    path.write_text(format_yaml({"method": method, "parameters": parameters, **cap}))
    return list(read_sweep(path, **options).settings)


def test_a_grid_is_the_product_by_name_the_last_name_fastest(tmp_path):
    parameters = {"b.c": {"values": ["x", "y"]}, "a.d": {"min": 1, "max": 2}, "b.a": {"value": True}}
    expected = [{"a.d": d, "b.a": True, "b.c": c} for d in (1, 2) for c in ("x", "y")]
    assert settings_of(tmp_path, "grid", parameters) == expected
    assert settings_of(tmp_path, "grid", parameters, run_cap=3) == expected[:3]


def test_seeds_replace_those_of_a_grid(tmp_path):
    parameters = {"run.seed": {"values": [7]}, "a": {"value": 1}}
    assert settings_of(tmp_path, "grid", parameters, seeds=2) == [{"a": 1, "run.seed": 0}, {"a": 1, "run.seed": 1}]
    with pytest.raises(ConfigError, match=r"--seeds=2: .*grid"):
        settings_of(tmp_path, "random", parameters, seeds=2, run_cap=1)
    with pytest.raises(ConfigError, match=r"must be <= 10,000"):
        settings_of(tmp_path, "grid", parameters, seeds=10**9)


SPACE = {
    "constant": {"value": "c"},
    "choice": {"values": [1, 2, 3, 4]},
    "whole": {"min": 3, "max": 9},
    "line": {"min": 0.5, "max": 2.5},
    "logarithm": {"distribution": "log_uniform_values", "min": 1e-5, "max": 1e-1},
}


def test_draws_follow_their_distributions_and_seed(tmp_path):
    found = settings_of(tmp_path, "random", SPACE, run_cap=N, seed=3)
    for name, law in {"line": stats.uniform(0.5, 2.0), "logarithm": stats.loguniform(1e-5, 1e-1)}.items():
        assert stats.kstest([run[name] for run in found], law.cdf).pvalue > 1e-3, name
    assert collections.Counter(run["whole"] for run in found).keys() == set(range(3, 10))
    assert {run["choice"] for run in found} == {1, 2, 3, 4}
    assert settings_of(tmp_path, "random", SPACE, run_cap=9, seed=3) == found[:9]
    assert settings_of(tmp_path, "random", SPACE, run_cap=9, seed=1) != found[:9]


def test_the_runs_are_those_of_wandbs_engine(tmp_path):
    engine = pytest.importorskip("sweeps.run", reason="installs only without its dependencies")
    grid = {name: SPACE[name] for name in ("constant", "choice", "whole")}
    theirs = engine.next_runs({"method": "grid", "parameters": grid}, [], n=10**6)
    plain = [{name: item["value"] for name, item in run.config.items()} for run in theirs if run is not None]
    assert settings_of(tmp_path, "grid", grid) == plain
    random.seed(5)
    theirs = engine.next_runs({"method": "random", "parameters": SPACE}, [], n=N)
    for ours, run in zip(settings_of(tmp_path, "random", SPACE, run_cap=N, seed=5), theirs, strict=True):
        for name, item in run.config.items():
            expected = item["value"]
            assert ours[name] == (expected if isinstance(expected, str) else pytest.approx(expected, rel=1e-9)), name


def test_macros_are_replaced_as_by_wandbs_agent():
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    settings = {"optim.lr": 3e-05, "train.recompute": True, "c": None, "mask": {"method": "causal"}, "d": "x y"}
    theirs = utils.create_sweep_command_args({"args": {key: {"value": value} for key, value in settings.items()}})
    assert expand(["${args}"], None, settings) == theirs["args"]
    words = ["${env}", "${interpreter}", "${program}", 7]
    assert expand(words, "p", {}) == ["/usr/bin/env", sys.executable, "p", "7"]
    with pytest.raises(ConfigError, match=r"command=\$\{arg\}: unknown"):
        expand(["${arg}"], None, {})


@pytest.mark.parametrize(
    "words", [["bash", "-c", "python -m lab.fit a.yaml"], ["python", "-m", "lab.prepare", "a.yaml"]]
)
def test_a_command_whose_settings_cannot_be_read_is_refused(words):
    with pytest.raises(ConfigError, match=r"command=.*must start lab.fit"):
        read_command(words)


def test_settings_given_go_to_every_run_and_those_for_wandb_stay_there():
    (run,) = plan(sweep({"run.seed": 4}), {"train.tokens": 8192, "run.folder": "elsewhere"})
    assert run.experiment.track.wandb == "off"
    assert (run.experiment.run.seed, run.experiment.train.tokens, run.path.parent) == (4, 8192, Path("elsewhere"))
    with pytest.raises(ConfigError, match=r"--run.seed=1: is a parameter of the sweep"):
        plan(sweep({"run.seed": 4}), {"run.seed": 1})


def test_two_runs_of_one_name_and_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match=r"run.name=cpu_test-\w+: is that of two runs, 0 and 1"):
        plan(sweep({"run.seed": 1}, {"run.seed": 1}), {})
    with pytest.raises(ConfigError, match=r"run.seed=-1: must be >= 0"):
        plan(sweep({"run.seed": -1}), {})


@pytest.mark.parametrize(
    "value", ["auto", "7", "off", "a: b", "", "[", None, True, 1.5, 3e-05, [1], {"a": {"b": None}}, "é"]
)
def test_a_setting_reads_back_to_the_same(value):
    (run,) = [read_command(["probe-lab", "fit", "a.yaml", setting(("x.y", value))])]
    assert run.settings == {"x.y": value}
