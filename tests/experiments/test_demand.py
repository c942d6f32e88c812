"""The results of the experiments on demand, from records made by hand."""

import json
import math
from pathlib import Path

import pytest
import torch
from scipy import stats

from experiments.demand.forks import planned_arms, planned_base
from experiments.demand.gapped import Gapped, first_after
from experiments.demand.plans import by_fork
from experiments.demand.results import describe
from experiments.tables import pack
from lab.probe.config import ProbeConfig
from lab.probe.effective_distance import DistanceProbe
from lab.yaml import format_yaml
from tests.eval.commands import size_of
from tests.forked import ROOT
from tests.probe.test_one_number import HAYSTACK

MACHINE = json.dumps({"hardware": {"cpu": "a processor"}})


def record(place, name, weights, seed, log_prob, found):
    """Write a run's records: three distances, of which the first is left out; `found` of 64 at the others."""
    run = place / name
    (run / "eval").mkdir(parents=True)
    (run / "config.yaml").write_text(format_yaml({"run": {"seed": seed, "name": name}, "weights": weights}))
    (run / "environment.json").write_text(MACHINE)
    about = {"method": "rope+plain", "metric": "found_by_distance", "n": 64}
    tested = zip((24, 60, 120), (0, *found), (-9.0, -0.5, log_prob), strict=True)
    rows = [{**about, "distance": d, "found": n, "score": n / 64, "log_prob": p} for d, n, p in tested]
    rows.append({"method": "rope+plain", "metric": "reach", "reach": None, "first_distance": 24, "last_distance": 120})
    write(run / "eval" / "distance-1.jsonl", rows)
    return run


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_arms_and_paired_tests(tmp_path, capsys):
    runs = []
    for seed, shift in enumerate((0.0, 0.2, -0.2, 0.2, -0.2)):
        name = f"S3_96-{seed}-{{}}_96".format
        runs.append(record(tmp_path, name("all"), None, seed, -1.0 + shift, (64, 32)))
        runs.append(record(tmp_path, name("far_off"), None, seed, -4.0 + 2 * shift, (0, 0) if seed else (64, 0)))
        runs.append(record(tmp_path, name("kind_off"), None, seed, -1.0 + shift, (64, 64) if seed else (64, 32)))
        for beyond in (64, 96):
            runs.append(record(tmp_path, f"S3_{beyond}-{seed}-base", None, seed, -1.0, (64, 32)))
    for beyond in (64, 96):
        pack([run for run in runs if run.name.startswith(f"S3_{beyond}")], tmp_path / f"S3_{beyond}.jsonl.xz")
    describe("S3", tmp_path, tmp_path)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    # 80% lie at 60 + 60 * 0.2 / 0.5 = 84 tokens where half is found at 120, at 72 where none is; 24 and 120 are bounds,
    # of which there is no mean; nothing is found at 24, a dip
    assert lines[1].startswith("base 64 5 84.0 - 0 0 5 5 84.0 "), "each table has bases of its own"
    assert lines[2].startswith("base 96 5 84.0 - 0 0 5 5 84.0 ")
    assert lines[3].startswith("all 96 5 84.0 - 0 0 5 5 84.0 ")
    assert lines[4].startswith("far off 96 5 <24 to 72 - 4 0 1 1 72.0 "), "one has begun"
    assert lines[5].startswith("kind off 96 5 84 to 120+ - 0 4 5 5 84 to 120+ ")
    columns = ["n", "needed", "difference", "low", "high", "level", "p", "exact p", "p, Holm"]

    def find(start):
        (line,) = [line for line in lines if line.startswith(start)]
        return dict(zip(columns, line.split("far off 96 ")[1].split(), strict=False)), line

    # differences 3, 2.8 and 3.2 twice each: mean 3, standard deviation 0.2, t(4) = 2.776, Holm over two that are equal
    log_p, _ = find("S3a log p 65-179 kind off 96 less far off 96")
    p = stats.ttest_1samp([3, 2.8, 3.2, 2.8, 3.2], 0).pvalue
    half = 2.7764 * 0.2 / math.sqrt(5)
    assert (float(log_p["low"]), float(log_p["high"])) == pytest.approx((3 - half, 3 + half), abs=6e-4)
    assert (log_p["p"], log_p["exact p"], log_p["p, Holm"]) == (f"{p:.2g}", "0.062", f"{2 * p:.2g}"), "2 / 2^5"
    assert log_p["needed"] == "-", "where a difference is shown, no more seeds are needed"
    # .5 and 1 four times, and as four of ten have not begun, -1 and 1: mean .643, standard deviation .748, t(6) = 2.447
    share, line = find("S3a share 65-179 kind off 96 less far off 96")
    assert (float(share["difference"]), float(share["high"])) == (0.9, 1.0)
    assert float(share["low"]) == pytest.approx(0.6429 - 2.4469 * 0.7480 / math.sqrt(7), abs=1e-3)
    assert " 6 of 10 " in line
    # ln(84 / 72) and four times ln(120 / 24), the bounds
    reach, line = find("S3a ln reach kind off 96 less far off 96")
    assert float(reach["difference"]) == pytest.approx((math.log(84 / 72) + 4 * math.log(5)) / 5, abs=6e-4)
    assert line.endswith(" 8.0"), "at a bound"
    assert min(size_of(tmp_path / "demand_S3.png")) > 300


class Recorder:
    """A decoder that keeps the ids of its last call."""

    def __call__(self, tokens, position_ids, targets, summed):
        self.ids = position_ids
        return torch.zeros(tokens.shape)


@pytest.mark.parametrize("gap", [0, 50])
def test_the_gap_follows_the_number(bpe, gap):
    config = ProbeConfig(digits=3, distance_tests=4)
    probe = DistanceProbe(config, bpe, HAYSTACK, window=160, stop_id=None)
    cases = [probe.case(60, test) for test in range(4)]
    places = torch.tensor([[first_after(case, 60)] for case in cases])
    tokens = torch.tensor([case.prompt_ids for case in cases])
    recorder = Recorder()
    Gapped(recorder, gap, places).losses(tokens, tokens)
    for case, ids in zip(cases, recorder.ids.tolist(), strict=True):
        (jump,) = [k for k in range(1, len(ids)) if ids[k] != ids[k - 1] + 1] or [int(places[cases.index(case)])]
        assert ids[jump] == jump + gap
        before = bpe.decode(case.prompt_ids[:jump])
        assert before.endswith(f"{case.numbers[0]}."), "all of the needle, and nothing after it"
        number = bpe.encode(f" {case.numbers[0]}", add_special_tokens=False).ids
        first = len(case.prompt_ids) - 1 - 60
        assert case.prompt_ids[first : first + 3] == number[-3:], "its digits"
        assert ids[-1] - ids[first] == 60 + gap


def test_arms_of_a_base_start_from_it_and_share_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    given = {"run.folder": str(tmp_path), "train.tokens": 4096, "optim.warmup_steps": 1}
    base = planned_base("S3_64", 2, given)
    base.path.mkdir()
    (base.path / "config.yaml").write_text(base.experiment.to_yaml())
    (base.path / "tokenizer.json").write_text("{}")
    arms = [run.experiment for run in planned_arms("S3_64", 2, base, given)]
    assert [by_fork(arm.to_dict()) for arm in arms] == ["all 64", "far off 64", "kind off 64"]
    for arm in arms:
        assert Path(arm.start.path) == base.path
        assert (arm.run.seed, arm.data.corpus.seed) == (102, base.experiment.data.corpus.seed)
        assert (arm.data, arm.model, arm.skip) == (base.experiment.data, base.experiment.model, base.experiment.skip)
    assert arms[1].weights == base.experiment.weights
    assert arms[0].weights is None
