"""The command for the day a GPU is there, at toy size on a CPU; and what its stages cannot do to each other."""

import threading
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import record
from benchmarks.gpu import tests as gpu_tests
from benchmarks.gpu import training
from benchmarks.gpu.sizes import LARGE, TOY
from benchmarks.gpu.stage import Options, outcome_of
from benchmarks.on_gpu import STAGES, Stage, run_stages
from lab.train.step import Training
from tests.forked import LIMIT_S


@pytest.fixture
def options(tmp_path):
    (tmp_path / "logs").mkdir()
    return Options(tmp_path, TOY)


def child_of(out):
    """Wait for the process that a stage starts before it hangs, and return its id."""
    until = time.monotonic() + LIMIT_S
    while not (found := (out / "child").read_text() if (out / "child").exists() else ""):
        assert time.monotonic() < until
        time.sleep(0.05)
    return int(found)


def ends(pid):
    """Tell whether a process is gone, or dead and not yet reaped."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        stat = Path(f"/proc/{pid}/stat")
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def outcomes(out):
    return [(r.stage, r.case, r.status) for r in record.read(out / "results.jsonl")]


def test_a_case_that_raises_stops_neither_its_stage_nor_the_next(tmp_path):
    stages = [Stage("one", "tests.benchmarks.stages.raises", 600), Stage("two", "tests.benchmarks.stages.dies", 600)]
    assert not run_stages(stages, tmp_path, toy=True)
    assert outcomes(tmp_path) == [
        ("one", "before", "ok"),
        ("one", "broken", "failed"),
        ("one", "after", "ok"),
        ("two", "before", "ok"),
        ("two", "", "failed"),
    ]
    reasons = [r.reason for r in record.read(tmp_path / "results.jsonl") if r.reason]
    assert reasons == ["ValueError: no such thing", "ended with status 3: the end is near"]
    assert "ValueError" in (tmp_path / "logs" / "one.log").read_text()


def test_a_stage_over_its_limit_is_killed_with_all_its_processes(tmp_path, monkeypatch):
    def timer(limit_s, stop):
        """Wait until the stage hangs, however long its start takes, instead of so many seconds."""
        thread = threading.Thread(target=lambda: (child_of(tmp_path), stop()))
        return SimpleNamespace(start=thread.start, cancel=thread.join)

    monkeypatch.setattr("benchmarks.on_gpu.threading", SimpleNamespace(Timer=timer, Event=threading.Event))
    assert not run_stages([Stage("endless", "tests.benchmarks.stages.hangs", 5)], tmp_path, toy=True)
    assert outcomes(tmp_path) == [("endless", "before", "ok"), ("endless", "", "timed out")]
    assert ends(child_of(tmp_path))


for_the_day_of_a_gpu = pytest.mark.slow  # 16 s of a core, for a command that is run once a GPU is there


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Measure the cases of every stage at toy size in this process."""
    options = Options(tmp_path_factory.mktemp("on_gpu"), TOY)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as the command does for a toy
    with pytest.MonkeyPatch.context() as patch:
        clean(patch)
        yield {
            stage.name: measured(import_module(stage.module), options) for stage in STAGES if stage.name != "gpu tests"
        }
    torch.set_num_threads(before)


def measured(module, options):
    outcomes = {case: outcome_of(measure) for case, measure in module.cases(options)}
    training.release()  # as the stage's end does
    return outcomes


def clean(patch):
    """Let Lightning's variables end with the test."""
    for name in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE"):
        patch.setenv(name, "")
        patch.delenv(name)


def figures(toy, stage):
    return {case: outcome["figures"] for case, outcome in toy[stage].items() if outcome["status"] == "ok"}


@for_the_day_of_a_gpu
def test_every_stage_measures_at_toy_size(toy):
    assert {name for name in toy if figures(toy, name)} == toy.keys()
    assert {outcome["status"] for cases in toy.values() for outcome in cases.values()} == {"ok"}


@for_the_day_of_a_gpu
def test_a_step_is_eight_micro_batches_at_both_windows(toy):
    found = figures(toy, "steps")
    assert found.keys() == {"tiny_2k", "tiny_4k"}
    for case in found.values():
        assert (case["micro_batches"], case["updates"], case["pack_tokens"]) == (8, TOY.updates, 256)
        assert case["last_loss"] < case["first_loss"]
        assert case["dry_run_gib"] > 12 * case["parameters"] / 2**30  # weights and moments


def test_micro_batches_and_updates_are_timed_apart_by_hand():
    # 3 packs an update; micro-batches between two others take 2 s; an update lasts 9 s, 9 s, 12 s, of them 3 * 2 s
    times = [0, 4, 6, 9, 13, 15, 18, 25, 27, 30]
    assert training.apart(times, 3) == (2, 3)


def count(monkeypatch, owner, name, before=lambda *_: None):
    """Count the calls of a function."""
    calls, own = [], getattr(owner, name)

    def counted(*arguments, **options):
        before(*arguments)
        calls.append(name)
        return own(*arguments, **options)

    monkeypatch.setattr(owner, name, counted)
    return calls


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A place for the shards that several tests train on."""
    return Options(tmp_path_factory.mktemp("prepared"), TOY)


@pytest.fixture
def alone(monkeypatch):
    """Leave neither a process group nor its variables."""
    clean(monkeypatch)
    yield
    training.release()


def test_what_is_measured_is_the_step_of_a_run(prepared, alone, monkeypatch):
    from lab.train import session

    micro_batches = count(monkeypatch, Training, "training_step")
    unsynchronised = count(monkeypatch, session, "accumulating")
    steps = count(monkeypatch, torch.optim.AdamW, "step")
    found = training.measure(prepared, LARGE, {"train.strategy": "fsdp"}, updates=2)
    assert found["strategy"] == "fsdp"
    assert len(steps) == training.WARM_UP + 2
    assert len(micro_batches) == 8 * len(steps)
    assert len(unsynchronised) == 7 * len(steps)
    assert not (prepared.work / "runs").exists(), "nothing is written"


@pytest.mark.slow
def test_every_backend_is_among_the_tests_of_kernels_and_results_are_in_their_file_as_they_come(options):
    path = options.out / "test_made_up.py"
    path.write_text(
        "import os, pytest\n\n@pytest.mark.gpu\ndef test_one(): pass\n\n@pytest.mark.gpu\ndef test_two(): os._exit(9)\n"
    )
    with pytest.raises(RuntimeError):
        gpu_tests.run_tests(options, "tests/model/test_contract.py", str(path))
    text = (options.out / "gpu_tests.txt").read_text()
    assert "::test_one PASSED" in text
    found = gpu_tests.selection(text)
    ran = [sum(found["backends"][name].values()) for name in ("sdpa", "varlen", "flash", "xformers")]
    assert min(ran) > 10
    assert found["selected"] > 150
