"""Sweep files and their commands: what is refused, and that macros become what wandb's own agent makes of them."""

import sys
from pathlib import Path

import pytest

from lab.errors import ConfigError
from lab.sweep.commands import expand, read_command, setting
from lab.sweep.planning import plan
from lab.sweep.reading import Sweep, read_sweep

ROOT = Path(__file__).resolve().parents[2]
SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))
COMMAND = ["${env}", "${interpreter}", "-m", "${program}", "configs/cpu_test.yaml", "--resume", "--run.name=auto"]
ONLINE = "--track.wandb=online"


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
        section = run.experiment.to_dict()
        for key, value in run.swept.items():
            for word in key.split("."):
                section = section[word]
            assert section == value
            section = run.experiment.to_dict()


FAULTS = {
    "bayes": ("method: bayes\nparameters: {a: {value: 1}}", "method=bayes: must be one of 'grid' or 'random'; "),
    "early_terminate": ("method: grid\nearly_terminate: {type: hyperband}", "early_terminate: needs wandb's server; "),
    "unknown_key": ("method: grid\nparameter: {}\nparameters: {a: {value: 1}}", "parameter={}: unknown setting; "),
    "twice": ("method: grid\nmethod: grid", "line 2: method is given twice; "),
    "target": ("method: grid\nmetric: {name: a, target: 1}\nparameters: {a: {value: 1}}", "metric.target=1: unknown"),
    "no_end": ("method: random\nparameters: {a: {min: 1, max: 2}}", "run_cap: must be set where method=random"),
    "no_grid": ("method: grid\nparameters: {a: {min: 1.0, max: 2}}", "parameters.a.distribution=uniform: has no list"),
    "exponents": ("method: grid\nparameters: {a: {distribution: log_uniform}}", "did you mean log_uniform_values?"),
    "misspelt": ("method: grid\nparameters: {a: {distribution: q_uniforn}}", "did you mean q_uniform?"),
    "text": ("method: grid\nparameters: {a: {min: low, max: 1}}", "parameters.a.min=low: must be a number; "),
    "infinite": ("method: grid\nparameters: {a: {min: 0, max: .inf}}", "must be a number"),
    "endless": ("method: grid\nparameters: {a: {min: 1, max: 1000000000000}}", "a: has 1,000,000,000,000 "),
    "fine": ("method: grid\nparameters: {a: {distribution: q_uniform, min: 0, max: 1, q: 1e-9}}", "has 1,000,000,000 "),
    "product": (
        f"method: grid\nparameters: {{{', '.join(f'{x}: {{min: 1, max: 99}}' for x in 'abc')}}}",
        "parameters=99*99*99: make 970,299 runs, must be <= 10,000; ",
    ),
    "draws": ("method: random\nrun_cap: 20000\nparameters: {a: {min: 1, max: 2}}", "run_cap=20000: must be <= 10,000"),
    "backwards": ("method: grid\nparameters: {a: {min: 2, max: 1}}", "parameters.a.min=2: must be < max=1; "),
    "no_list": ("method: grid\nparameters: {a: {values: 3}}", "parameters.a.values=3: must be a list; "),
    "plain": ("method: grid\nparameters: {a: 3}", "parameters.a=3: must be a section; "),
    "odd_key": ("method: grid\nparameters: {a: {b: {c: 1}}}", "parameters.a.b: is no parameter; "),
    "shares": ("method: random\nrun_cap: 1\nparameters: {a: {values: [1], probabilities: [0.5]}}", "sum to 1"),
    "inner": ("method: grid\nparameters: {a: {parameters: {b: {value: 1, q: 2}}}}", "parameters.a.b.q=2: unknown"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line"), FAULTS.values(), ids=FAULTS)
def test_what_is_refused(tmp_path, text, line):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as found:
        read_sweep(path)
    (fault,) = found.value.faults
    assert line in fault


def test_values_are_read_as_in_every_config_and_a_cap_bounds_a_product(tmp_path):
    path, names = tmp_path / "sweep.yaml", "abcd"
    values = "[off, 2001-01-01, 010, 59:59, 1e-4, 1_0]"
    path.write_text(
        f"method: grid\nrun_cap: 6\nparameters: {{{', '.join(f'{x}: {{values: {values}}}' for x in names)}}}"
    )
    read = [settings["d"] for settings in read_sweep(path).settings]
    assert read == ["off", "2001-01-01", "010", "59:59", 1e-4, 10]
    path.write_text("method: grid\nparameters: {a: {value: 1}}")
    with pytest.raises(ConfigError, match="^--seeds=1000000000: must be <= 10,000"):
        read_sweep(path, seeds=10**9)


def test_macros_are_replaced_as_by_wandbs_agent(monkeypatch):
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    monkeypatch.setenv("HERE", "there")
    settings = {
        "optim.lr": 3e-05,
        "train.recompute": True,
        "b": False,
        "c": None,
        "mask": {"method": "causal"},
        "d": "x y",
    }
    theirs = utils.create_sweep_command_args({"args": {key: {"value": value} for key, value in settings.items()}})
    for macro in ("args", "args_no_equals", "args_no_hyphens", "args_no_boolean_flags", "args_json"):
        assert expand([f"${{{macro}}}"], None, settings) == theirs[macro]
    assert [
        f"${{{macro}}}" in str(utils.DEFAULT_SWEEP_COMMAND) for macro in ("env", "interpreter", "program", "args")
    ] == [True] * 4
    words = ["${env}", "${interpreter}", "${program}", "a${envvar:HERE}", "${envvar:NOWHERE}", 7]
    assert utils.create_sweep_command(list(words[3:5])) == ["athere", "NOWHERE"]
    assert expand(words, "p", {}) == ["/usr/bin/env", sys.executable, "p", "athere", "NOWHERE", "7"]


def test_a_macro_that_wandb_would_drop_is_refused():
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
    start = ["/usr/bin/env", sys.executable, "-m", "lab.fit", "configs/cpu_test.yaml", "--resume", "--run.name=auto"]
    assert run.words() == [*start, "--run.seed=4", "--train.tokens=8192", "--run.folder=elsewhere"]
    assert plan(sweep({"run.seed": 4}), {"track.wandb": "offline"})[0].experiment.track.wandb == "offline"


def test_every_run_is_checked_and_what_would_share_a_folder_is_refused():
    runs = {"run.seed": -1}, {"optim.l": 1}, {"train.threads": 1}, {"train.threads": 2}
    with pytest.raises(ConfigError) as found:
        plan(sweep(*runs), {"run.seed": 3})
    lines = [fault.split(";")[0] for fault in found.value.faults]
    assert lines[0] == "--run.seed=3: is a parameter of the sweep"
    assert lines[1] == "optim.l=1: unknown setting"
    assert lines[2].startswith("run.name=cpu_test-")
    with pytest.raises(ConfigError, match=r"run.seed=-1: must be >= 0"):
        plan(sweep({"run.seed": -1}), {})


@pytest.mark.parametrize(
    "value", ["auto", "7", "off", "a: b", "", "[", None, True, 1.5, 3e-05, [1], {"a": {"b": None}}, "é"]
)
def test_a_setting_reads_back_to_the_same(value):
    (run,) = [read_command(["probe-lab", "fit", "a.yaml", setting(("x.y", value))])]
    assert run.settings == {"x.y": value}
