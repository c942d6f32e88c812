"""The runs of a grid and of random draws, against values worked by hand, distributions, and wandb's own engine."""

import collections
import random

import pytest
import yaml
from scipy import stats

from lab.errors import ConfigError
from lab.sweep.reading import read_sweep

N = 400


def settings_of(tmp_path, method, parameters, **options):
    cap = {"run_cap": options.pop("run_cap")} if "run_cap" in options else {}
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"method": method, "parameters": parameters, **cap}, sort_keys=False))
    return list(read_sweep(path, **options).settings)


def test_a_grid_is_the_product_by_name_the_last_name_fastest(tmp_path):
    parameters = {
        "b.c": {"values": ["x", "y"]},
        "a.d": {"min": 1, "max": 2},
        "b.a": {"value": True},
        "e": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.5},  # the end is left out, as by np.arange
    }
    expected = [
        {"a.d": d, "b.a": True, "b.c": c, "e": e} for d in (1, 2) for c in ("x", "y") for e in (0, 0.5)
    ]  # fmt: skip
    assert settings_of(tmp_path, "grid", parameters) == expected
    assert settings_of(tmp_path, "grid", parameters, run_cap=3) == expected[:3]


def test_nested_parameters_are_sections(tmp_path):
    nested = {
        "z": {"parameters": {"n": {"values": [1, 2]}, "m": {"parameters": {"k": {"value": 3}}}}},
        "a": {"value": 0},
    }
    assert settings_of(tmp_path, "grid", nested) == [{"a": 0, "z": {"m": {"k": 3}, "n": n}} for n in (1, 2)]


def test_seeds_replace_those_of_a_grid(tmp_path):
    parameters = {"run.seed": {"values": [7]}, "a": {"value": 1}}
    assert settings_of(tmp_path, "grid", parameters, seeds=2) == [{"a": 1, "run.seed": 0}, {"a": 1, "run.seed": 1}]
    with pytest.raises(ConfigError, match=r"--seeds=2: .*grid"):
        settings_of(tmp_path, "random", parameters, seeds=2, run_cap=1)


SPACE = {
    "constant": {"value": "c"},
    "choice": {"values": [1, 2, 3, 4]},
    "weighted": {"values": ["a", "b", "c"], "probabilities": [0.2, 0.5, 0.3]},
    "whole": {"min": 3, "max": 9},
    "line": {"min": 0.5, "max": 2.5},
    "line_of_whole": {"distribution": "uniform", "min": 1, "max": 2},
    "steps": {"distribution": "q_uniform", "min": 0, "max": 3, "q": 0.4},
    "logarithm": {"distribution": "log_uniform_values", "min": 1e-5, "max": 1e-1},
    "steps_of_logarithm": {"distribution": "q_log_uniform_values", "min": 8, "max": 512, "q": 8},
    "inverse": {"distribution": "inv_log_uniform_values", "min": 1e-5, "max": 1e-1},
    "bell": {"distribution": "normal", "mu": 2, "sigma": 3},
    "steps_of_bell": {"distribution": "q_normal", "q": 1},
    "logarithm_of_bell": {"distribution": "log_normal", "mu": 0.5},
    "steps_of_logarithm_of_bell": {"distribution": "q_log_normal", "q": 0.25},
    "curve": {"distribution": "beta", "a": 2, "b": 3},
    "steps_of_curve": {"distribution": "q_beta", "q": 0.1},
}
LAWS = {  # of the continuous ones, as scipy has them
    "line": stats.uniform(0.5, 2.0),
    "logarithm": stats.loguniform(1e-5, 1e-1),
    "inverse": stats.loguniform(1e-5, 1e-1),
    "bell": stats.norm(2, 3),
    "logarithm_of_bell": stats.lognorm(s=1.0, scale=2.718281828459045**0.5),
    "curve": stats.beta(2, 3),
}


def test_draws_follow_their_distributions(tmp_path):
    found = settings_of(tmp_path, "random", SPACE, run_cap=N, seed=3)
    for name, law in LAWS.items():
        assert stats.kstest([run[name] for run in found], law.cdf).pvalue > 1e-3, name
    counts = collections.Counter(run["weighted"] for run in found)
    assert stats.chisquare([counts[c] for c in "abc"], [N * p for p in (0.2, 0.5, 0.3)]).pvalue > 1e-3
    assert {run["whole"] for run in found} == set(range(3, 10))
    assert {run["choice"] for run in found} == {1, 2, 3, 4}
    assert {type(run["steps_of_bell"]) for run in found} == {int}
    assert {round(run["steps"] / 0.4, 9) for run in found} == set(range(8))  # at most 3 / 0.4 = 7.5
    assert all(run["steps_of_logarithm"] % 8 == 0 for run in found)


def test_draws_are_those_of_the_seed_and_a_cap_only_shortens_them(tmp_path):
    first = settings_of(tmp_path, "random", SPACE, run_cap=5)
    assert (
        settings_of(tmp_path, "random", SPACE, run_cap=9)[:5]
        == first
        == settings_of(tmp_path, "random", SPACE, run_cap=5, seed=0)
    )
    assert settings_of(tmp_path, "random", SPACE, run_cap=5, seed=1) != first
    numbers = random.Random(0)  # the same numbers, in the order of the names
    drawn = dict(zip(sorted(SPACE), [numbers.random() for _ in SPACE], strict=True))
    assert first[0]["bell"] == pytest.approx(stats.norm(2, 3).ppf(drawn["bell"]))


def test_the_runs_are_those_of_wandbs_engine(tmp_path):
    engine = pytest.importorskip("sweeps.run", reason="installs only without its dependencies")
    grid = {name: SPACE[name] for name in ("constant", "choice", "whole", "steps")} | {
        "a": {"parameters": {"b": {"values": [2.0, 3]}}}
    }
    theirs = engine.next_runs({"method": "grid", "parameters": grid}, [], n=10**6)
    plain = [{name: item["value"] for name, item in run.config.items()} for run in theirs if run is not None]
    assert settings_of(tmp_path, "grid", grid) == plain
    random.seed(5)
    theirs = engine.next_runs({"method": "random", "parameters": SPACE}, [], n=N)
    for ours, run in zip(settings_of(tmp_path, "random", SPACE, run_cap=N, seed=5), theirs, strict=True):
        for name, item in run.config.items():
            expected = item["value"]
            assert ours[name] == (expected if isinstance(expected, str) else pytest.approx(expected, rel=1e-9)), name
