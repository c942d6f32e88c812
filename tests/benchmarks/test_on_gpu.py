"""The command for the day a GPU is there, at toy size on a CPU."""

import pytest
import torch

from benchmarks import on_gpu, record
from benchmarks.gpu import training
from benchmarks.gpu.sizes import LARGE, TOY, Options
from lab.train.step import Training


def test_a_case_that_raises_does_not_stop_the_next(tmp_path, monkeypatch, capsys):
    def fails():
        raise ValueError("no such thing")

    def lacks():
        raise record.Skipped("no such package")

    made = {"before": lambda: {"x": 1}, "broken": fails, "absent": lacks, "after": lambda: {"x": 2}}
    monkeypatch.setattr(on_gpu, "cases", lambda options: made)
    monkeypatch.setattr("sys.argv", ["on_gpu", "--out", str(tmp_path / "new"), "--toy"])
    assert on_gpu.main() == 1
    found = [(r.case, r.status, r.reason) for r in record.read(tmp_path / "new" / "results.jsonl")]
    assert found == [
        ("before", "ok", None),
        ("broken", "failed", "ValueError: no such thing"),
        ("absent", "skipped", "no such package"),
        ("after", "ok", None),
    ]
    assert capsys.readouterr().out.count("\n") == 4


def clean(patch):
    """Let Lightning's variables end with the test."""
    for name in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE"):
        patch.setenv(name, "")
        patch.delenv(name)


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
