"""Sweep files and their commands: which runs they are, and what is refused."""

from pathlib import Path

import pytest
from scipy import stats

from lab.core.errors import ConfigError
from lab.core.yaml import format_yaml
from lab.runs.folder import RunFolder
from lab.sweep.parameter import Parameter
from lab.sweep.planning import plan, plan_command
from tests.forked import ROOT
from tests.refusals import refused

SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))
COMMAND = ["${env}", "${interpreter}", "-m", "${program}", "configs/cpu_test.yaml", "--resume", "--run.name=auto"]
N = 200


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def planned(tmp_path):
    """A function that plans the runs of parameters."""

    def runs(parameters, given=(), *, method="grid", run_cap=None, **options):
        command = [*COMMAND, "--track.wandb=online", "${args}"]
        values = {"method": method, "parameters": parameters, "command": command, "program": "lab.fit"}
        (tmp_path / "sweep.yaml").write_text(format_yaml({**values, **({"run_cap": run_cap} if run_cap else {})}))
        return plan(tmp_path / "sweep.yaml", dict(given), **options)

    return runs


@pytest.mark.parametrize("path", SWEEPS, ids=[path.stem for path in SWEEPS])
def test_every_run_of_every_file_is_valid_and_has_a_name_of_its_own(path):
    runs = plan(path, {})
    assert len({run.path for run in runs}) == len(runs) > 1
    for run in runs:
        for key, value in run.swept.items():
            section = run.experiment.to_dict()
            for word in key.split("."):
                section = section[word]
            assert section == value


FAULTS = {
    "method: bayes\nparameters: {a: {value: 1}}": "method=bayes: must be one of 'grid' or 'random'",
    "method: grid\nearly_terminate: {type: hyperband}": "early_terminate: needs wandb's server; remove it",
    "method: random\nrun_cap: 1\nparameters: {a: {distribution: normal, mu: 0}}": (
        "parameters.a.distribution=normal: must be one of"
    ),
    "method: random\nrun_cap: 1\nparameters: {a: {min: 1, max: 2, q: 0.5}}": "parameters.a.distribution=None: must be",
    "method: random\nrun_cap: 1\nparameters: {a: {distribution: log_uniform_values, min: 0, max: 2}}": (
        "parameters.a.min=0: must be > 0"
    ),
    "method: random\nparameters: {a: {min: 1, max: 2}}": "run_cap: must be set where method=random",
    "method: grid\nparameters: {a: {min: 1.0, max: 2}}": "parameters.a: has no list of values",
    "method: grid\nparameters: {a: {min: 1, max: 1000000000000}}": "parameters: make more than 10,000 runs",
    "method: grid\nparameters: {a: {min: 2, max: 1}}": "parameters.a.min=2: must be < max=1",
    "method: grid\nparameters: {a: {value: 1, min: 0, max: 2}}": "parameters.a.value: goes alone",
    "method: grid\nparameters: {}": "parameters={}: must hold settings",
    "method: grid\nparameters: {a: {distribution: categorical, min: 1, max: 3}}": (
        "parameters.a.distribution=categorical: takes value or values"
    ),
    "method: grid\nparameters: {1: {value: 1}}": "parameters.1: must be the name of a setting",
    "method: grid\nparameters: {optim.lr: {value: 1}, optim: {parameters: {lr: {values: [2, 3]}}}}": (
        "parameters.optim.lr: is there twice"
    ),
}


@pytest.mark.parametrize(("text", "line"), FAULTS.items(), ids=FAULTS)
def test_what_is_refused(tmp_path, text, line):
    path = tmp_path / "sweep.yaml"
    path.write_text(f"command: [-m, lab.fit, configs/cpu_test.yaml]\n{text}")
    with refused(line, error=ConfigError):
        plan(path, {})


def test_a_grid_is_the_product_by_name_the_last_name_fastest(planned):
    parameters = {"run.seed": {"values": [5, 4]}, "data.window": {"min": 95, "max": 96}, "mask": {"value": {}}}
    found = [tuple(run.swept.values()) for run in planned(parameters)]
    assert found == [(window, {}, seed) for window in (95, 96) for seed in (5, 4)]
    assert [tuple(run.swept.values()) for run in planned(parameters, run_cap=3)] == found[:3]
    assert [run.experiment.run.seed for run in planned(parameters, seeds=1)] == [0, 0]
    with pytest.raises(ConfigError, match=r"make more than 10,000 runs"):
        planned(parameters, seeds=10**9)


SPACE = {
    "data.corpus.log_std": {"min": 0.5, "max": 2.5},
    "data.mode": {"values": ["natural", "uniform", "concatenated"]},
    "optim.beta2": {"value": 0.9},
    "run.seed": {"min": 3, "max": 9},
}
SAMPLES = {  # at the probability 0.3, by the definitions on wandb's page
    "uniform": ({"min": 2, "max": 4}, 2.6),
    "int_uniform": ({"min": 1, "max": 10}, 3),
    "log_uniform_values": ({"min": 1e-5, "max": 0.1}, 10**-3.8),
    "categorical": ({"values": (7, 8, 9)}, 7),
}


@pytest.mark.parametrize("distribution", SAMPLES)
def test_a_distribution_means_what_it_means_to_wandb(distribution):
    settings, expected = SAMPLES[distribution]
    sample = Parameter(distribution=distribution, **settings).quantile(0.3)
    assert sample == pytest.approx(expected, rel=1e-12)
    assert type(sample) is type(expected)


def test_nested_parameters_are_settings_of_sections(planned):
    nested = {"optim": {"parameters": {"lr": {"values": [1e-3, 2e-3]}}}, "data.window": {"value": 96}}
    assert [run.swept for run in planned(nested)] == [{"data.window": 96, "optim.lr": lr} for lr in (1e-3, 2e-3)]


def test_draws_follow_their_distributions_and_seed(planned):
    found = [run.swept for run in planned(SPACE, method="random", run_cap=N, seed=3)]
    assert stats.kstest([run["data.corpus.log_std"] for run in found], stats.uniform(0.5, 2.0).cdf).pvalue > 1e-3
    assert {run["run.seed"] for run in found} == {*range(3, 10)}
    assert {run["data.mode"] for run in found} == {"natural", "uniform", "concatenated"}
    assert [run.swept for run in planned(SPACE, method="random", run_cap=9, seed=3)] == found[:9]
    assert [run.swept for run in planned(SPACE, method="random", run_cap=9)] != found[:9]


def test_a_command_whose_settings_cannot_be_read_is_refused():
    for words in (["bash", "-c", "python -m lab.fit a.yaml"], ["python", "-m", "lab.prepare", "a.yaml"]):
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
    assert run.words(1)[:6] == [*words, "--resume"]
    again = plan_command(run.words(1), {"train.threads": None}, {})
    assert (again.experiment, again.path.name) == (run.experiment, "7")


def test_threads_are_those_set_or_begun_with_or_a_part_of_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    words = ["lab.fit", "configs/cpu_test.yaml"]
    where = {"run.folder": str(tmp_path), "train.threads": None}
    free, bound = (plan_command(words, where | more, {}) for more in ({}, {"train.threads": 3}))
    assert [free.threads(3), free.threads(16), bound.threads(2)] == [2, 1, 3]
    assert "--train.threads=2" in free.words(3)
    RunFolder(free.path).path.mkdir()
    (free.path / "environment.json").write_text('{"threads": 5}')
    assert free.threads(3) == 5
