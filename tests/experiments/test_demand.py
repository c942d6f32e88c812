"""The results of the experiments on demand, from records made by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from experiments.demand.plans import plan_base, plan_branches
from experiments.demand.results import HEADING, describe
from experiments.tables import pack
from lab.core.yaml import format_yaml
from tests.eval.commands import size_of
from tests.forked import ROOT


def record(place, name, seed, found):
    """Write a run's records: three distances, of which the first has no number found; `found` of 64 at the others."""
    run = place / name
    (run / "eval").mkdir(parents=True)
    (run / "config.yaml").write_text(format_yaml({"run": {"seed": seed, "name": name}}))
    np.savez(
        run / "counts.npz", lengths=np.zeros(193, int), f=np.full(192, 5), g=np.eye(192, dtype=int)[100] * 4, tokens=1
    )
    about = {"method": "rope+plain", "metric": "found_by_distance", "n": 64}
    tested = zip((24, 60, 120), (0, *found), strict=True)
    rows = [{**about, "distance": d, "found": n, "score": n / 64, "log_prob": -9.0} for d, n in tested]
    (run / "eval" / "distance-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_conditions_and_verdicts(tmp_path, capsys):
    runs = []
    for seed, shift in enumerate((0, 2, -2, 2, -2)):
        name = f"S3_96-{seed}-{{}}_96".format
        runs.append(record(tmp_path, name("all"), seed, (64, 32)))
        runs.append(record(tmp_path, name("far_off"), seed, (0, 0) if seed else (64, 0)))
        runs.append(record(tmp_path, name("kind_off"), seed, (64, 64) if seed else (64, 32)))
        runs.append(record(tmp_path, f"S3_96-{seed}-base", seed, (64, 32)))
        for arm, found in (("all", 64), ("far_off", 0), ("kind_off", 60 + shift)):
            runs.append(record(tmp_path, f"S1-{seed}-{arm}", seed, (64, found)))
    for table in ("S1", "S3_96"):
        pack([run for run in runs if run.name.startswith(table)], tmp_path / f"{table}.jsonl.xz")
    page = tmp_path / "demand.md"
    above = f"title\n```\nabove\n```\n{HEADING}\n"
    page.write_text(f"{above}before\n```\nold\n```\nafter\n```\ncode\n```\n")
    describe(tmp_path, tmp_path)
    printed = capsys.readouterr().out
    assert page.read_text() == f"{above}before\n```\n{printed}```\nafter\n```\ncode\n```\n"
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    # 80% are at 60 + 60 * 0.2 / 0.5 = 84 tokens where half is found at 120, at 72 where none is; nothing is found at 24
    rows = lines[lines.index(next(line for line in lines if line.startswith("S3_96"))) :]
    assert rows[1:5] == [
        "base model 5 5 0.50 84 84 84 84 84 84 5 4",
        "unmasked 5 5 0.50 84 84 84 84 84 84 5 4",
        "far-masked 5 1 0.00 72 - - - - - 5 4",
        "matched control 5 5 0.90 84 120+ 120+ 120+ 120+ - 5 4",
    ]
    columns = [
        "D",
        "n",
        "of",
        "runs",
        "difference",
        "low",
        "high",
        "low_90",
        "high_90",
        "p",
        "Holm",
        "exact",
        "verdict",
    ]

    def find(start, beyond):
        """Find a prediction, whose name may go on in the line below."""
        (line,) = [line for line in lines if line.startswith(start) and f" {beyond} 5 " in line]
        values = line[line.index(f" {beyond} 5 ") :].replace(" of ", " ").split()
        return dict(zip(columns, values, strict=True))

    # .5 and 1 four times, and as four of ten have not begun, -1 and 1: mean .643, standard deviation .748, t(6) = 2.447
    found = find("S3a: matched", 96)
    assert (float(found["difference"]), float(found["high"]), found["verdict"]) == (0.9, 1.0, "open")
    assert float(found["low"]) == pytest.approx(0.6429 - 2.4469 * 0.7480 / math.sqrt(7), abs=1e-3)
    assert (found["of"], found["runs"]) == ("6", "10")
    # 60 of 64 and 2 more or less, halved by the band's one distance: t(4) = 2.776
    shares = [n / 64 for n in (60, 62, 58, 62, 58)]
    half = 2.7764 * stats.sem(shares)
    found = find("S1a: matched", 64)
    assert (float(found["low"]), float(found["high"])) == pytest.approx((0.9375 - half, 0.9375 + half), abs=6e-4)
    assert found["verdict"] == "shown"
    assert min(size_of(tmp_path / "demand.png")) > 300


def test_arms_of_a_base_start_from_it_and_share_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    base = plan_base("S3_64", 2, tmp_path)
    base.path.mkdir()
    (base.path / "config.yaml").write_text(base.experiment.to_yaml())
    (base.path / "tokenizer.json").write_text("{}")
    arms = [run.experiment for run in plan_branches("S3_64", 2, base, tmp_path)]
    names = ["S3_64-2-all_64", "S3_64-2-far_off_64", "S3_64-2-kind_off_64"]
    assert [arm.run.name for arm in arms] == names, "as the records name them"
    for arm in arms:
        assert Path(arm.start.path) == base.path
        assert (arm.run.seed, arm.data.corpus.seed) == (102, base.experiment.data.corpus.seed)
        assert (arm.data, arm.model, arm.skip) == (base.experiment.data, base.experiment.model, base.experiment.skip)
        assert (arm.train.tokens, base.experiment.train.tokens) == (1_000_000, 3_000_000)
    assert arms[1].weights == base.experiment.weights
    assert arms[0].weights is None
