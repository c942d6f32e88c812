"""Runs of earlier versions: records open, and a removed setting is named with the last commit that has it."""

import json
from pathlib import Path

import pytest

import lab
from eval.reach import main as reach
from lab.config import load_experiment
from lab.core.errors import ConfigError
from lab.core.yaml import format_yaml, read_yaml
from tests.forked import ROOT
from tests.refusals import refused

FILE = Path(__file__).parent / "removed_settings.yaml"  # of a run of 30 steps, made at commit 80c73de7
REMOVED = {
    "model.norm=sandwich": {"model": {"norm": "sandwich"}},
    "model.gate=True": {"model": {"gate": True}},
    "model.softmax.method=sink": {"model": {"softmax": {"method": "sink"}}},
    "weights.by=context": {"weights": {"by": "context", "target": {"method": "power", "exponent": 0.5}}},
    "weights.control=loss": {"weights": {"by": "evidence", "keep": [[0, 30]], "control": "loss"}},
    "weights.control=kind": {"weights": {"by": "evidence", "keep": [[0, 30]], "control": "kind"}},
    "evidence.method=asked": {"evidence": {"method": "asked"}},
    "evidence.method=suffix": {"evidence": {"method": "suffix", "least": 1}},
    "evidence.method=gain": {"evidence": {"method": "gain"}},
    "data.schedule.start=32.0": {"data": {"schedule": {"start": 32.0, "tokens": 900}}},
    "position.frequency.method=longrope": {"position": {"frequency": {"method": "longrope"}}},
    "data.corpus.name=mqar": {"data": {"corpus": {"name": "mqar", "pairs": 8, "tokens": 64}}},
}
COMMITS = {  # others: 0385f271
    **dict.fromkeys(("weights.control=kind", "evidence.method=asked", "evidence.method=suffix"), "806a6455"),
    "data.schedule.start=32.0": "22fd915b",
    "position.frequency.method=longrope": "fbd5e937",
}
PLAIN = {"model": {"norm": "pre", "gate": False, "softmax": None}, "weights": None}


def write(folder, changes):
    """Write a run's config.yaml, that of the fixture without removed settings but for the changes, and a probe."""
    values = read_yaml(FILE)
    for section, settings in [*PLAIN.items(), *changes.items()]:
        values[section] = {**(values[section] or {}), **settings} if isinstance(settings, dict) else settings
    folder.mkdir()
    (folder / "config.yaml").write_text(format_yaml(values))
    probe = {"consumed_tokens": 9, "effective_length": 64, "reach": 50.0, "first_distance": 8, "last_distance": 90}
    (folder / "probes.jsonl").write_text(json.dumps(probe) + "\n")
    return folder


@pytest.mark.parametrize("setting", REMOVED)
def test_records_open_and_the_model_names_the_commit(tmp_path, setting):
    plain, removed = write(tmp_path / "plain", {}), write(tmp_path / "removed", REMOVED[setting])
    assert load_experiment(plain / "config.yaml").model.n_layers == 2
    assert lab.open_run(removed).probes().reach.tolist() == [50.0]
    name, _, value = setting.partition("=")
    frame = lab.frame(tmp_path / "*")
    assert frame.set_index("run")[name].map(str)["removed"] == value
    commit = COMMITS.get(setting, "0385f271")
    with refused(f"{removed / 'config.yaml'}: {setting}: {{}}; {{}}commit {commit}", error=ConfigError):
        load_experiment(removed / "config.yaml")


def test_recorded_arms_open(capsys):
    arms = ROOT / "experiments/demand/records/arms.jsonl.xz"
    assert {"post", "sandwich"} < {*lab.frame(arms)["model.norm"]}
    assert reach([str(arms)]) == 0
    assert "model.softmax.method" in lab.frame(arms).columns
    assert "reach" in capsys.readouterr().out
