"""Runs of configs/cpu_test.yaml: their settings, their commands, and what two of them have in common."""

import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from lab.config import Experiment, load_experiment
from lab.core.arguments import parse_overrides
from tests.forked import LIMIT_S, ROOT, python

CONFIG = ROOT / "configs" / "cpu_test.yaml"
UNPROBED = (
    *("--probe.every_tokens=null", "--probe.loss_tokens=0", "--probe.tests=1", "--probe.max_length=128"),
    *("--probe.distance_tests=0", "--probe.distance_points=null"),
)
NO_PROBES = parse_overrides(UNPROBED)
FRACTIONS = ("0.125", "0.25", "0.5", "0.75")
EXACT = ("step", "consumed_tokens", "loss", "lr", "grad_norm", *(f"f_at_{x}L" for x in FRACTIONS), "share_le_half")
SUMS = ("held_out_loss", "bits_per_byte", "context_loss", "log_prob")  # of losses, in another order on more ranks
SPEED = ("tokens_per_s", "mfu", "mfu_full")
PARTS = {"one": {}, "fsdp1": {"train.strategy": "fsdp"}}  # strategies, each with a number of processes
for world in (2, 4):
    for strategy, shared in (("ddp", "shared"), ("fsdp", "shared_fsdp")):
        PARTS[f"{strategy}{world}"] = {"train.strategy": strategy, "train.devices": world}
        PARTS[f"{shared}{world}"] = PARTS[f"{strategy}{world}"] | {"train.context_parallel": 2}
PARTS["background2"] = PARTS["fsdp2"] | {"train.async_checkpoints": True}


def load(*words: str) -> Experiment:
    return load_experiment(CONFIG, parse_overrides(words))


def world_of(part: str) -> int:
    return PARTS[part].get("train.devices", 1)


def options_of(part: str) -> list[str]:
    return [f"--{name}={value}" for name, value in PARTS[part].items()]


def settings_of(place: Path, name: str) -> list[str]:
    return [f"--run.folder={place / 'runs'}", f"--data.folder={place / 'shards'}", f"--run.name={name}"]


def command(place: Path, name: str, *options: str, config: Path = CONFIG) -> list[str]:
    return [sys.executable, "-m", "lab.fit", str(config), *settings_of(place, name), *options]


def fit(place: Path, name: str, *options: str, config: Path = CONFIG, limit_s: int = LIMIT_S) -> Path:
    done = python(*command(place, name, *options, config=config)[1:], timeout=limit_s)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return place / "runs" / name


def records(run: Path, name: str = "metrics.jsonl", without: Iterable[str] = ()) -> list[dict]:
    lines = map(json.loads, (run / name).read_text().splitlines())
    return [{key: value for key, value in line.items() if key not in without} for line in lines]


def exact_metrics(run: Path) -> list[tuple]:
    return [tuple(record[key] for key in EXACT) for record in records(run)]


def probed(run: Path) -> list[dict]:
    """Leave out what two runs cannot have in common: names, times, weights before they are saved, and the commit."""
    return records(run, "probes.jsonl", without=("model", "seconds", "weights", "commit"))


def read_cases(run: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (run / "cases").iterdir()}


def assert_same_run(run: Path, other: Path) -> None:
    assert exact_metrics(run) == exact_metrics(other)
    assert probed(run) == probed(other)
    assert read_cases(run) == read_cases(other)
    files = counts_of(run)
    assert files == counts_of(other)
    for file in files:
        for key in ("f", "lengths", "tokens", "g", "g_unweighted"):
            np.testing.assert_array_equal(np.load(run / file)[key], np.load(other / file)[key])


def counts_of(run: Path) -> list[Path]:
    return sorted(path.relative_to(run) for path in [run / "counts.npz", *run.glob("counts/*")])


def assert_equal_training(run: Path, other: Path, atol: float) -> None:
    """Compare runs of several strategies, whose losses are sums in another order."""
    ours, theirs = records(run), records(other)
    np.testing.assert_allclose([r["loss"] for r in ours], [r["loss"] for r in theirs], rtol=0, atol=atol)
    for key in ("step", "consumed_tokens", "lr"):
        assert [r[key] for r in ours] == [r[key] for r in theirs]
    np.testing.assert_array_equal(np.load(run / "counts.npz")["f"], np.load(other / "counts.npz")["f"])
    assert counts_of(run) == counts_of(other)
    assert read_cases(run).keys() == read_cases(other).keys()
    for name in ("probes.jsonl", *(f"cases/{name}" for name in read_cases(run))):
        for mine, line in zip(records(run, name), records(other, name), strict=True):
            others = (*SUMS, "recall", "model", "seconds", "commit")
            plain = [{k: v for k, v in one.items() if k not in others} for one in (mine, line)]
            assert plain[0] == plain[1]
            assert mine.keys() == line.keys()
            for key in mine.keys() & set(SUMS):  # the log-probability of a number is that of up to six tokens
                assert mine[key] == (line[key] and pytest.approx(line[key], rel=0, abs=10 * atol))
            bins = [[list(row.values()) for row in one.get("recall", ())] for one in (mine, line)]
            np.testing.assert_allclose(*bins, rtol=0, atol=10 * atol)


def train(place: Path, name: str, *options: str, resume: bool = False) -> Path:
    """Train in this process, for tests of what a run leaves."""
    from lab.train.run import run_experiment

    assert run_experiment(load(*settings_of(place, name), *options), resume, "again") == 0
    return place / "runs" / name


def cut_after(run: Path, copy: Path, n: int = 1) -> Path:
    """Copy a run as it was after its first checkpoints."""
    shutil.copytree(run, copy)
    for checkpoint in sorted((copy / "checkpoints").glob("tokens-*"))[n:]:
        shutil.rmtree(checkpoint)
    return copy
