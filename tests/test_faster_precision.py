"""`auto` on a CPU takes the faster precision, the same in all processes, and a resume takes what was recorded."""

from pathlib import Path

import pytest
import torch

from eval.engine.subject import as_subject
from lab.data.module import PackedData
from lab.jobs import is_finished
from lab.launch import Launch
from lab.loading import open_model
from lab.schema import read_yaml
from lab.sweep.planning import plan
from lab.train import session
from tests.fits import UNPROBED, assert_same_run, exact_metrics, load, records, settings_of, train
from tests.forked import ROOT
from tests.ranks import train as train_as_rank

SWEEPS = [path for path in sorted((ROOT / "sweeps").rglob("*.yaml")) if "configs/cpu_" in path.read_text()]
AUTO = "--train.precision=auto"
SHORT = (*UNPROBED, "--train.tokens=6144", "--train.checkpoint_every_tokens=2048")
TIMES = {  # seconds of a step in float32 and bfloat16, and what is faster by more than 3%
    "faster": (0.100, 0.090, "bf16"),
    "by_3_1_percent": (0.1000, 0.0969, "bf16"),
    "by_2_9_percent": (0.1000, 0.0971, "fp32"),
    "alike": (0.1, 0.1, "fp32"),
    "slower": (0.1, 1.3, "fp32"),
}


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_sweeps_of_configs_that_leave_it_open_set_the_precision(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert {run.experiment.train.precision for run in plan(path, {}, seeds=1)} in ({"fp32"}, {"bf16"})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("precision")


@pytest.fixture(scope="module")
def in_bf16(place):
    return train(place, "in_bf16", *SHORT, "--train.precision=bf16")


def taking(monkeypatch, fp32_s, bf16_s):
    monkeypatch.setattr(session, "step_seconds", lambda experiment, data: (fp32_s, bf16_s))


def unmeasured(experiment, data):
    raise AssertionError("measured")


def recorded(run: Path) -> str:
    return read_yaml(run / "config.yaml")["train"]["precision"]


@pytest.mark.parametrize(("fp32_s", "bf16_s", "faster"), TIMES.values(), ids=TIMES)
def test_the_faster_precision_is_taken_and_within_three_percent_float32(
    place, in_bf16, monkeypatch, capsys, fp32_s, bf16_s, faster
):
    taking(monkeypatch, fp32_s, bf16_s)
    asked = load(*settings_of(place, "chosen"), *SHORT, AUTO)
    assert session.with_precision(asked, Launch(), resume=False).train.precision == faster
    times = f"{1000 * fp32_s:.1f} ms in fp32 and {1000 * bf16_s:.1f} ms in bf16"
    assert capsys.readouterr().out == f"precision: {faster} (a pack takes {times})\n"


def test_a_run_that_measured_computes_as_one_with_that_precision_set(place, monkeypatch, capsys, in_bf16):
    measure = session.step_seconds

    def measured(experiment, data):
        measure(experiment, data)  # which must change nothing of the run
        return 2.0, 1.0

    monkeypatch.setattr(session, "step_seconds", measured)
    assert_same_run(train(place, "measured", *SHORT, AUTO), in_bf16)
    assert "on cpu in bf16\n" in capsys.readouterr().out
    in_fp32 = train(place, "in_fp32", *SHORT, "--train.precision=fp32")
    assert exact_metrics(in_fp32) != exact_metrics(in_bf16)


def test_a_resume_takes_the_recorded_precision_without_measuring(place, monkeypatch, in_bf16):
    taking(monkeypatch, 2.0, 1.0)
    run = train(place, "resumed", *SHORT, AUTO)
    newest = max((run / "checkpoints").glob("tokens-*"))
    for file in newest.iterdir():
        file.write_bytes(b"")  # so that the run goes on from the checkpoint before
    monkeypatch.setattr(session, "step_seconds", unmeasured)
    train(place, "resumed", *SHORT, AUTO, resume=True)
    assert recorded(run) == "bf16"
    assert_same_run(run, in_bf16)
    assert as_subject(open_model(run), run, torch.device("cpu")).precision == "bfloat16"
    assert records(run, "probes.jsonl")[-1]["precision"] == "bfloat16"
    assert is_finished(load(*settings_of(place, "resumed"), *SHORT, AUTO))
    assert not is_finished(load(*settings_of(place, "resumed"), *SHORT, "--train.precision=fp32"))


def test_a_run_of_an_older_version_that_left_it_open_goes_on_in_float32(place, monkeypatch):
    taking(monkeypatch, 1.0, 2.0)
    run = train(place, "older", *SHORT, AUTO)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("precision: fp32", "precision: auto"))
    monkeypatch.setattr(session, "step_seconds", unmeasured)
    train(place, "older", *SHORT, AUTO, resume=True)
    assert as_subject(open_model(run), run, torch.device("cpu")).precision == "float32"


def measuring_by_rank(settings):
    """Train where the first rank finds bfloat16 faster and the others would not."""
    import os

    from lab.train import session

    first = os.environ["RANK"] == "0"
    session.step_seconds = (lambda experiment, data: (2.0, 1.0)) if first else unmeasured
    return train_as_rank(settings)


def test_all_processes_take_what_the_first_one_chose(place, ranks):
    of_two = {"train.devices": 2, "train.tokens": 6144, "run.folder": str(place / "runs")}
    of_two |= {"data.folder": str(place / "shards"), "probe.every_tokens": None, "probe.tests": 1}
    for name, chosen, job in (("two", "auto", measuring_by_rank), ("two_bf16", "bf16", train_as_rank)):
        ranks(2).run(job, {**of_two, "run.name": name, "train.precision": chosen})
    assert recorded(place / "runs" / "two") == "bf16"
    assert exact_metrics(place / "runs" / "two") == exact_metrics(place / "runs" / "two_bf16")


def test_both_precisions_are_measured_on_the_first_pack(place, in_bf16, monkeypatch):
    experiment = load(*settings_of(place, "measuring"), *SHORT, AUTO)
    data = PackedData(experiment)
    seen = []
    step = session.Training.training_step

    def watched(module, batch, number):
        seen.append((torch.is_autocast_enabled("cpu"), batch["stream"], tuple(batch["lengths"])))
        return step(module, batch, number)

    monkeypatch.setattr(session.Training, "training_step", watched)
    monkeypatch.setattr(session, "MEASURED_S", 0.0)
    times = session.step_seconds(experiment, data)
    assert [autocast for autocast, *_ in seen] == [False, True, False, True]
    own = PackedData(experiment)
    own.setup("fit")
    assert {(stream, lengths) for _, stream, lengths in seen} == {(0, tuple(next(own.train_dataloader())["lengths"]))}
    assert all(0 < seconds < 60 for seconds in times)
