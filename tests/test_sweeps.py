"""Sweep files: every combination of their settings is a valid run of the config that their command names."""

import itertools
from pathlib import Path

import pytest
import yaml

from lab.config import load_experiment

ROOT = Path(__file__).resolve().parents[1]
SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("path", SWEEPS, ids=[path.stem for path in SWEEPS])
def test_every_combination_is_a_valid_run(path):
    sweep = yaml.safe_load(path.read_text())
    assert sweep["method"] == "grid"
    assert sweep["command"][-1] == "${args}"
    (config,) = [word for word in " ".join(sweep["command"]).split() if word.endswith(".yaml")]
    grid = [parameter["values"] for parameter in sweep["parameters"].values()]
    for values in itertools.product(*grid):
        settings = dict(zip(sweep["parameters"], values, strict=True))
        experiment = load_experiment(ROOT / config, settings).to_dict()
        for key, value in settings.items():
            section = experiment
            for word in key.split("."):
                section = section[word]
            assert section == value


def test_there_are_sweeps():
    assert SWEEPS
