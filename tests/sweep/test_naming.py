"""Automatic names: the same for the same settings, however and wherever they are written, and no others."""

import json
import lzma

import pytest

from lab.config import Experiment, load_experiment
from lab.config.experiment import automatic_name
from lab.core.schema import iterate_settings
from lab.core.yaml import flatten, parse_yaml
from tests.forked import ROOT

SMALL = "model: {d_model: 32, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_ff: 64, tie_embeddings: false}\n"


def name(path, **overrides):
    settings = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_experiment(path, {"run.name": "auto", **settings}).run.name


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def test_equal_settings_have_equal_names(small, tmp_path):
    one = name(small, optim__lr=1.0)
    assert one == name(small, optim__lr=1) == name(small, optim={"lr": 1.0}, optim__beta2=0.95)
    other = tmp_path / "sub" / "small.yaml"
    other.parent.mkdir()
    other.write_text("run: {name: auto}\noptim: {lr: 1.0e+0}\nmask: {method: causal}\n" + SMALL)
    assert load_experiment(other).run.name == one
    resolved = load_experiment(small, {"run.name": "auto", "optim.lr": 1.0})
    printed = tmp_path / one / "config.yaml"
    printed.parent.mkdir()
    printed.write_text(resolved.to_yaml())
    assert load_experiment(printed) == resolved


def test_what_changes_no_result_changes_no_name(small):
    free = {"train__threads": 3, "run__folder": "x", "track__every_steps": 7, "train__backend": "sdpa"}
    assert {name(small, **{key: value}) for key, value in free.items()} == {name(small)}


def test_every_other_setting_changes_it(small):
    masks = [{"method": "causal"}, {"method": "document"}, {"method": "anchor"}]  # which differ in the tag alone
    changes = [{"data__mode": "concatenated", "mask": mask} for mask in masks]
    changes += [{}, {"run__seed": 1}, {"data__mode": "uniform"}, {"optim__lr": 0.01}, {"data__corpus": {"words": 16}}]
    changes += [{"train__precision": "bf16"}]
    assert len({name(small, **change) for change in changes}) == len(changes)


RECORDS = sorted((ROOT / "experiments" / "miniature" / "records").glob("*.jsonl.xz"))


@pytest.mark.parametrize("table", RECORDS, ids=[path.name for path in RECORDS])
def test_names_of_runs_that_were_recorded_hold(table, tmp_path):
    known = {name for name, *_ in iterate_settings(Experiment)}
    lines = lzma.decompress(table.read_bytes()).decode().splitlines()
    rows = [json.loads(line) for line in lines if '"config.yaml"' in line]
    for row in rows[::3]:
        recorded = flatten(parse_yaml(row["text"], "record"))
        (tmp_path / "x.yaml").write_text("{}")
        kept = {key: value for key, value in recorded.items() if key in known}
        experiment = load_experiment(tmp_path / "x.yaml", kept)
        assert automatic_name(experiment, experiment.run.name.rpartition("-")[0]) == row["run"]
    assert rows
