"""The command for the day a GPU is there, at toy size on a CPU; and what its stages cannot do to each other."""

import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import record
from benchmarks.gpu import fits
from benchmarks.gpu.sizes import TOY
from benchmarks.gpu.stage import Options, outcome_of
from benchmarks.on_gpu import STAGES, Stage, run_stages
from tests.forked import ROOT, Forked

NEEDS_A_GPU = {"gpu tests", "litgpt"}  # stages with nothing to measure where the tests run


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


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Measure the cases of every stage at toy size in this process, but for the runs that stages start and kill."""
    options = Options(tmp_path_factory.mktemp("on_gpu"), TOY)
    (options.out / "logs").mkdir()
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as the command does for a toy
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fits, "subprocess", SimpleNamespace(Popen=started))
        modules = {stage.name: import_module(stage.module) for stage in STAGES if stage.name != "gpu tests"}
        yield {
            name: {case: outcome_of(measure) for case, measure in module.cases(options)}
            for name, module in modules.items()
        }
    torch.set_num_threads(before)


def started(words, cwd, stdout, stderr):
    return Forked(words, cwd, output=stdout.name)


def figures(toy, stage):
    return {case: outcome["figures"] for case, outcome in toy[stage].items() if outcome["status"] == "ok"}


def test_every_stage_measures_at_toy_size(toy):
    assert {name for name in toy if figures(toy, name)} == toy.keys() - NEEDS_A_GPU
    assert {outcome["status"] for cases in toy.values() for outcome in cases.values()} == {"ok", "skipped"}


def test_fsdp_trains_what_one_process_trains_though_it_was_killed(toy):
    [fsdp] = figures(toy, "fsdp").values()
    assert fsdp["steps"] == 20
    assert fsdp["killed_at_step"] < 20
    assert fsdp["largest_loss_difference"] < 1e-5
    assert fsdp["checkpoint_bytes"] > 0


def test_the_bands_and_the_probe_have_ratios(toy):
    bands = figures(toy, "bands")
    assert {case.split()[0] for case in bands} == {"string", "dca", "self_extend", "rerope", "leaky_rerope"}
    assert all(case["ratio_to_plain"] > 0 for case in bands.values())
    [probe] = figures(toy, "probe").values()
    assert probe["whole_roof"] > 1
