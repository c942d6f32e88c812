"""The results of the experiments on demand, from records made by hand."""

import json
import math
from pathlib import Path

import pytest
import torch

from experiments.demand.forks import planned_arms, planned_base
from experiments.demand.gapped import Gapped, first_after
from experiments.demand.plans import by_fork, by_weights
from experiments.demand.results import describe
from experiments.tables import pack
from lab.probe.config import ProbeConfig
from lab.probe.effective_distance import DistanceProbe
from lab.schema import format_yaml
from tests.eval.commands import size_of
from tests.forked import ROOT
from tests.probe.test_one_number import HAYSTACK

MACHINE = json.dumps({"hardware": {"cpu": "a processor"}})


def record(place, name, weights, seed, log_prob, found):
    """Write a run's records: three distances, of which the first is left out; `found` of 64 at the others."""
    run = place / name
    (run / "eval").mkdir(parents=True)
    (run / "config.yaml").write_text(format_yaml({"run": {"seed": seed}, "weights": weights}))
    (run / "environment.json").write_text(MACHINE)
    about = {"method": "rope+plain", "metric": "found_by_distance", "n": 64}
    tested = zip((24, 60, 120), (0, *found), (-9.0, -0.5, log_prob), strict=True)
    rows = [{**about, "distance": d, "found": n, "score": n / 64, "log_prob": p} for d, n, p in tested]
    rows.append({"method": "rope+plain", "metric": "reach", "reach": None, "first_distance": 24, "last_distance": 120})
    write(run / "eval" / "distance-1.jsonl", rows)
    return run


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def by_evidence(control):
    return {"by": "evidence", "keep": [[0, 96]], "control": control, "fraction": 1.0}


def test_arms_and_paired_tests(tmp_path, capsys):
    runs = []
    for seed, shift in enumerate((0.0, 0.2, -0.2)):
        runs.append(record(tmp_path, f"u{seed}", None, seed, -1.0 + shift, (64, 32)))
        runs.append(
            record(tmp_path, f"f{seed}", by_evidence("none"), seed, -4.0 + 2 * shift, (0, 0) if seed else (64, 0))
        )
        runs.append(
            record(tmp_path, f"n{seed}", by_evidence("near"), seed, -1.0 + shift, (64, 64) if seed else (64, 32))
        )
    pack(runs, tmp_path / "1.jsonl.xz")
    describe("1", tmp_path, tmp_path)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    # 80% lie at 60 + 60 * 0.2 / 0.5 = 84 tokens where half is found at 120, at 72 where none is; 60 and 120 are bounds,
    # of which there is no mean
    assert lines[1].startswith("untouched 3 84.0 - 0 0 3 84.0 ")
    (far,) = [line for line in lines if line.startswith("far 96")]
    assert far.startswith("far 96 3 <60 to 72 - 2 0 1 72.0 "), "one has begun"
    (near,) = [line for line in lines if line.startswith("near 96")]
    assert near.startswith("near 96 3 84 to 120+ - 0 2 3 84 to 120+ ")
    # differences -3, -2.8 and -3.2: mean -3, standard deviation 0.2, t(2) = 4.303
    half = 4.303 * 0.2 / math.sqrt(3)
    (test,) = [line for line in lines if line.startswith("1a log p 97-179 far 96 less near 96")]
    assert test.replace("-3.000", "-3.0") == (
        f"1a log p 97-179 far 96 less near 96 3 -3.0 {-3 - half:.3f} {-3 + half:.3f} 0.95 0.0015 0.003 NaN"
    ), "t = -26.0, and Holm over two contrasts, far less untouched at 48 to 96 being the other"
    (share,) = [line for line in lines if line.startswith("1a share 97-179 far 96 less near 96")]
    assert share.startswith("1a share 97-179 far 96 less near 96 3 -0.833 "), "none against .5, 1 and 1"
    # ln(120 / 84) = 0.357 for two of three seeds, which enter this test at their bound
    (equal,) = [line for line in lines if "near 96 less untouched" in line]
    assert equal.startswith("1c ln reach near 96 less untouched 3 0.238 ")
    assert equal.endswith("0.9 0.18 2 not shown")
    assert min(size_of(tmp_path / "demand_1.png")) > 300


def test_one_effect_less_another(tmp_path, capsys):
    runs = []
    for seed, every in enumerate((32, 0)):
        for asks, tokens, at_120 in (("every", 96, every), ("every", 192, 48), ("last", 96, 32), ("last", 192, 48)):
            run = record(tmp_path, f"{asks}{tokens}{seed}", None, seed, -1.0, (64, at_120))
            corpus = {"section_tokens": tokens, "asks": asks}
            (run / "config.yaml").write_text(format_yaml({"run": {"seed": seed}, "data": {"corpus": corpus}}))
            runs.append(run)
    pack(runs, tmp_path / "9.jsonl.xz")
    describe("9", tmp_path, None)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    # reach lies at 60 + 60 * 0.2 / (1 - found at 120): 108
    # tokens at 48 of 64, 84 at 32, 72 at 0: ln(108 / 84) = 0.251 and ln(108 / 72) = 0.405
    every, last, both = [line for line in lines if line.startswith("ln reach")]
    assert every.startswith("ln reach sections of 192, every asks less sections of 96, every asks 2 0.328 ")
    assert last.startswith("ln reach sections of 192, last asks less sections of 96, last asks 2 0.251 ")
    mean = math.log(84 / 72) / 2  # differences 0 and ln(84 / 72), t(1) = 12.7062
    effects = " less ".join(
        f"(sections of 192, {asks} asks less sections of 96, {asks} asks)" for asks in ("every", "last")
    )
    assert both == f"ln reach {effects} 2 0.077 {mean - 12.7062 * mean:.3f} {mean + 12.7062 * mean:.3f} 0.95 0.50 0"


def test_arms_of_the_decoder_against_demand(tmp_path, capsys):
    """An arm that reaches 108 in place of 84 tokens, by half as much as with demand censored: 108 in place of 72."""
    runs = []
    for seed in (0, 1):
        for norm, keep, at_120 in (("pre", False, 32), ("post", False, 48), ("pre", True, 0), ("post", True, 48)):
            weights = by_evidence("none") if keep else None
            run = record(
                tmp_path, f"{norm}{keep}{seed}", weights, seed, -1.0 + 0.1 * seed * (norm == "post"), (64, at_120)
            )
            settings = {"run": {"seed": seed}, "model": {"norm": norm}, "weights": weights}
            (run / "config.yaml").write_text(format_yaml(settings))
            write(run / "probes.jsonl", [{"held_out_loss": 9.0}, {"held_out_loss": 1.5}])
            rows = [{"metric": "recall", "distance": 64, "score": 7.0, "right_whole": 0.1}]
            write(run / "eval" / "recall-1.jsonl", [{"method": "rope+plain", **row} for row in rows])
            runs.append(run)
    pack(runs, tmp_path / "10.jsonl.xz")
    describe("10", tmp_path, None)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0].endswith("log p 48-60 log p 72-120 share 48-60 share 72-120 held-out loss")
    # all are found at 60 tokens; at 120 half of them, which is the bound, or none: half at 90. No limits without spread
    assert lines[1] == "pre-norm 2 84.0 - 0 0 2 84.0 120+ -0.50 -1.00 1.00 0.50 1.50"
    assert lines[2].startswith("pre-norm, demand to 96 2 72.0 - 0 0 2 72.0 90.0 ")
    assert lines[3].startswith("post-norm 2 108.0 - 0 0 2 108.0 120+ -0.50 -0.95")
    (moved,) = [line for line in lines if line.startswith("moves log p")]
    half = 12.7062 * 0.025  # differences 0 and 0.05, t(1) = 12.7062
    assert (
        moved
        == f"moves log p 48-179 post-norm less pre-norm 2 0.025 {0.025 - half:.3f} {0.025 + half:.3f} 0.95 0.5 0.5 NaN"
    )
    (both,) = [line for line in lines if line.startswith("ln reach (")]
    effects = "(pre-norm less pre-norm, demand to 96) less (post-norm less post-norm, demand to 96)"
    assert both == f"ln reach {effects} 2 {math.log(84 / 72):.3f} NaN NaN 0.95 NaN 0"


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        (None, "untouched"),
        (by_evidence("random"), "random 96"),
        ({**by_evidence("none"), "fraction": 0.984375}, "dose 1/64"),
        ({**by_evidence("near"), "keep": [[0, 64], [128, 192]]}, "hole, near"),
    ],
)
def test_arms_are_named_by_their_weights(weights, name):
    assert by_weights({"weights": weights}) == name


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


def test_real_text_is_compared_by_gain_and_by_nats_without_evidence(tmp_path, capsys):
    """Of far less untouched the gain differs, and the nats without evidence by 0.01 + - 0.01: within 0.05."""
    runs = []
    for seed in range(4):
        for name, gain, nats in (("all", 0.3, 2.0), ("far_off", 0.1, 2.01)):
            run = tmp_path / f"S4-{seed}-{name}"
            (run / "eval").mkdir(parents=True)
            (run / "environment.json").write_text(MACHINE)
            (run / "config.yaml").write_text(format_yaml({"run": {"seed": seed, "name": run.name}}))
            about = {"method": "rope+plain", "right_whole": 0.5}
            shift = (0.01 if seed % 2 else -0.01) * (name == "far_off")
            rows = [{"metric": "recall", "distance": d, "score": gain + shift} for d in (32, 96, 200)]
            rows.append({"metric": "no_evidence", "score": nats + shift})
            write(run / "eval" / "recall-1.jsonl", [about | row for row in rows])
            runs.append(run)
    pack(runs, tmp_path / "S4.jsonl.xz")
    describe("S4", tmp_path, None)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0].endswith("gain 65-512 nats without evidence")
    assert lines[2] == "far off 4 0.10 0.10 2.01"
    half = 2.353 * math.sqrt(4 / 3) * 0.01 / 2  # t(3) = 2.353 at 90%, standard deviation 0.01 sqrt(4 / 3)
    (equal,) = [line for line in lines if line.startswith("S4 nats")]
    assert equal == f"S4 nats without evidence far off less all 4 0.01 {0.01 - half:.3f} {0.01 + half:.3f} 0.9 0.18 yes"


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


def test_bases_of_real_text_share_it_and_differ_in_their_seed(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    first, second = (planned_base("S4", seed, {"run.folder": str(tmp_path)}).experiment for seed in (0, 1))
    assert (first.data.corpus.name, first.data.window) == ("stdlib", 512)
    assert first.data == second.data
    assert (first.run.seed, second.run.seed) == (0, 1)
    assert (first.weights.keep, first.weights.control) == (((0, 64),), "none")
