"""Weights by context in runs: what was planned and counted, and the command that plans."""

import json
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pytest

from eval.shape import main
from lab.errors import ConfigError
from lab.runs.checkpoints import read_manifest
from lab.runs.folder import forget
from tests.eval.commands import size_of
from tests.fits import CONFIG, cut_after, train
from tests.refusals import refused

WEIGHTS = ("--weights.by=context", "--weights.target.exponent=0.7")
LARGE = ("--data.corpus.documents=1500", "--probe.every_tokens=null", "--probe.loss_tokens=0", "--probe.tests=1")
RUNS = {"plain": (), "weights": WEIGHTS}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Train every run of RUNS."""
    place = tmp_path_factory.mktemp("shapes")
    for name, words in RUNS.items():
        with redirect_stdout(StringIO()) as printed:
            train(place, name, *LARGE, *words)
        (place / f"{name}.txt").write_text(printed.getvalue())
    return place


def test_a_run_shows_about_what_was_planned(place):
    """20,480 tokens are some 400 segments, so the profile counted is that of the plan up to their draw."""
    record = json.loads((place / "runs/weights/plan.json").read_text())
    lines = (place / "weights.txt").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("weights for power, ")]
    assert f"total variation {record['total_variation']:.3f}" in line
    edges = np.array(record["edges"])
    f = np.load(place / "runs/weights/counts.npz")["supervised_f"]
    assert len(f) == edges[-1]
    profile = np.add.reduceat(f, edges[:-1]) / f[1:].sum()
    assert np.abs(profile - record["reached"]).sum() / 2 < 0.03
    assert record["settings"]["target"]["exponent"] == 0.7
    assert record["pairs_per_token"] > 0


def test_a_target_out_of_reach_is_one_line_before_training(place):
    with refused("weights.target.method=power: the plan comes within a total variation of 0.", error=ConfigError):
        train(place, "flat", *LARGE, WEIGHTS[0], "--weights.target.exponent=0")
    assert not (place / "runs" / "flat").exists()


def test_a_run_does_not_go_on_with_another_plan_than_it_was_begun_with(place):
    other = cut_after(place / "runs" / "weights", place / "runs" / "other", n=-1)
    record = json.loads((other / "plan.json").read_text())
    record["weights"][0] += 1
    forget(other, read_manifest(other)[0], ["plan.json"])
    (other / "plan.json").write_text(json.dumps(record))
    with refused(f"{other / 'plan.json'}: the plan "):
        train(place, other.name, *LARGE, *WEIGHTS, resume=True)


def test_the_command_plans_and_draws(place, capsys):
    shards = (f"--data.folder={place / 'shards'}", *LARGE)
    picture = place / "plan" / f"shape-{CONFIG.stem}.png"
    assert main([str(CONFIG), *WEIGHTS, *shards, "--plot", "-o", str(picture.parent)]) == 0
    assert min(size_of(picture)) > 300
    out = capsys.readouterr().out
    assert out.startswith("weights for ")
    rows = {words[0]: words for words in map(str.split, out.splitlines()) if words}
    shares = [float(x.rstrip("%")) for x in rows["natural"][1:]]
    assert len(shares) == 4
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert shares == sorted(shares, reverse=True)
