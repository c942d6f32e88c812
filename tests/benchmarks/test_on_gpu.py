"""The command for the day a GPU is there, at toy size on a CPU; and what its stages cannot do to each other."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import record
from benchmarks.on_gpu import STAGES, Stage, run_stages

ROOT = Path(__file__).resolve().parents[2]
NEEDS_A_GPU = {"gpu tests", "litgpt"}  # stages that have nothing to measure where the tests run


def ends(pid, within_s):
    """Tell whether a process is gone, or dead and not yet reaped, within some seconds."""
    until = time.monotonic() + within_s
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


def test_the_limits_add_up_to_less_than_ten_minutes():
    assert sum(stage.limit_s for stage in STAGES) < 600


def test_a_case_that_raises_stops_neither_its_stage_nor_the_next(tmp_path):
    stages = [Stage("one", "tests.benchmarks.stages.raises", 60), Stage("two", "tests.benchmarks.stages.dies", 60)]
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
    monkeypatch.setattr("benchmarks.on_gpu.TOY_PATIENCE", 1)
    assert not run_stages([Stage("endless", "tests.benchmarks.stages.hangs", 5)], tmp_path, toy=True)
    assert outcomes(tmp_path) == [("endless", "before", "ok"), ("endless", "", "timed out")]
    assert ends(int((tmp_path / "child").read_text()), within_s=5)


def test_the_command_is_stopped_with_all_its_processes(tmp_path):
    script = (
        "from pathlib import Path; from benchmarks import on_gpu; import sys\n"
        "on_gpu.STAGES = (on_gpu.Stage('endless', 'tests.benchmarks.stages.hangs', 100),)\n"
        "on_gpu.main()\n"
    )
    words = [sys.executable, "-c", script, "--toy", "--out", str(tmp_path)]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 60
            while not (tmp_path / "child").exists() and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(0.2)  # until the id is written
            process.terminate()
            assert process.wait(timeout=30) == 128 + 15
        finally:
            process.kill()
    assert ends(int((tmp_path / "child").read_text()), within_s=5)


def test_a_stage_that_is_none_is_a_mistake(tmp_path):
    words = [sys.executable, "-m", "benchmarks.on_gpu", "--out", str(tmp_path), "--only=rooofs"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2
    assert "rooofs" in done.stderr


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The records of the whole command at toy size."""
    out = tmp_path_factory.mktemp("on_gpu")
    words = [sys.executable, "-m", "benchmarks.on_gpu", "--toy", "--out", str(out)]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    assert not (out / "work").exists()
    return record.read(out / "results.jsonl")


def test_every_stage_measures_at_toy_size(toy):
    assert {r.stage for r in toy} == {stage.name for stage in STAGES}
    measured = {r.stage for r in toy if r.status == "ok"}
    assert measured == {stage.name for stage in STAGES} - NEEDS_A_GPU
    assert {r.status for r in toy} == {"ok", "skipped"}
    assert {r.benchmark for r in toy} == {"on_gpu"}


def test_fsdp_trains_what_one_process_trains_though_it_was_killed(toy):
    [fsdp] = [r.figures for r in toy if r.stage == "fsdp"]
    assert fsdp["steps"] == 20
    assert fsdp["killed_at_step"] < 20
    assert fsdp["largest_loss_difference"] < 1e-5
    assert fsdp["checkpoint_bytes"] > 0


def test_the_bands_and_the_probe_have_ratios(toy):
    bands = [r for r in toy if r.stage == "bands"]
    assert {r.case.split()[0] for r in bands} == {"string", "dca", "self_extend", "rerope", "leaky_rerope"}
    assert all(r.figures["ratio_to_plain"] > 0 for r in bands)
    [probe] = [r.figures for r in toy if r.stage == "probe"]
    assert probe["whole_roof"] > 1
