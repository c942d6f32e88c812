"""The command for the day a GPU is there, at toy size on a CPU; and what its stages cannot do to each other."""

import os
import subprocess
import sys
import time
import weakref
import zipfile
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from benchmarks import on_gpu, record
from benchmarks.gpu import bands, fits, fsdp, profile, training, variants
from benchmarks.gpu import tests as gpu_tests
from benchmarks.gpu.sizes import LARGE, SMALL, TOY
from benchmarks.gpu.stage import Options, Skipped, outcome_of
from benchmarks.on_gpu import PARTS, Stage, run_stages
from lab.model.attention import backends
from lab.train.module import Training
from tests.forked import ROOT, Forked

NEEDS_A_GPU = {"gpu tests"}  # stages with nothing to measure where the tests run
ALIKE = {"compile": 1, "variants": 1}  # stages whose cases are settings of one measurement, of which so many are made
ONE_LAYER = {"model.n_layers": 1}


@pytest.fixture
def options(tmp_path):
    (tmp_path / "logs").mkdir()
    return Options(tmp_path, TOY)


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
        "on_gpu.PARTS = {'first': (on_gpu.Stage('endless', 'tests.benchmarks.stages.hangs', 100),)}\n"
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
    stages = {stage.name: stage for part in PARTS.values() for stage in part if stage.name != "gpu tests"}
    (options.out / "logs").mkdir()
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as the command does for a toy
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fits, "subprocess", SimpleNamespace(Popen=started))
        clean(patch)
        yield {name: measured(import_module(stage.module), options, ALIKE.get(name)) for name, stage in stages.items()}
    torch.set_num_threads(before)


def measured(module, options, most):
    outcomes = {case: outcome_of(measure) for case, measure in module.cases(options)[:most]}
    training.release()  # as the stage's end does
    return outcomes


def clean(patch):
    """Let Lightning's variables end with the test."""
    for name in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE"):
        patch.setenv(name, "")
        patch.delenv(name)


def started(words, cwd, stdout, stderr):
    return Forked(words, cwd, output=stdout.name)


def figures(toy, stage):
    return {case: outcome["figures"] for case, outcome in toy[stage].items() if outcome["status"] == "ok"}


def test_every_stage_measures_at_toy_size(toy):
    assert {name for name in toy if figures(toy, name)} == toy.keys() - NEEDS_A_GPU
    assert {outcome["status"] for cases in toy.values() for outcome in cases.values()} == {"ok", "skipped"}


def test_fsdp_trains_what_one_process_trains_though_it_was_killed(toy):
    killed, resumed = figures(toy, "fsdp").values()
    assert killed["killed_at_step"] < resumed["steps"] == 20
    assert resumed["largest_loss_difference"] < 1e-5
    assert killed["checkpoint_bytes"] > 0


def test_the_bands_and_the_probe_have_ratios(toy):
    found = figures(toy, "bands")
    assert {case.split()[0] for case in found} == {"string", "dca", "self_extend", "rerope", "leaky_rerope"}
    assert all(case["ratio_to_plain"] > 0 for case in found.values())
    [probe] = figures(toy, "probe").values()
    assert probe["times_roof"] > 1


def test_a_step_is_eight_micro_batches_at_both_windows(toy):
    found = figures(toy, "steps")
    assert found.keys() == {"tiny_2k", "tiny_4k"}
    for case in found.values():
        assert (case["micro_batches"], case["updates"], case["pack_tokens"]) == (8, TOY.updates, 256)
        assert case["last_loss"] < case["first_loss"]
        assert case["dry_run_gib"] > 12 * case["parameters"] / 2**30  # weights and moments


def test_parts_take_less_than_nine_minutes_and_begin_by_compiling():
    for part in PARTS.values():
        assert sum(stage.limit_s for stage in part) < 9 * 60
        assert part[0].name == "compile"
    assert [stage.name for stage in PARTS["first"][1:]] == ["roofs", "gpu tests", "steps", "profile"]


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


@pytest.mark.filterwarnings("ignore:called a synchronizing")
def test_only_the_waits_of_the_measured_update_are_counted(prepared, alone, monkeypatch):
    import warnings

    notice = "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: warnings.warn(notice, stacklevel=1))
    waits = lambda *_: warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)  # noqa: E731
    count(monkeypatch, Training, "read_stats", waits)  # after every update, also of the warm-up
    count(monkeypatch, training, "wait", waits)
    found = {}
    training.measure(prepared, LARGE, ONE_LAYER, updates=1, around=profile.watched(found))
    assert found["waits"] == 1
    [place] = found["places"]
    assert place.startswith("tests/benchmarks/test_on_gpu.py:")


def test_no_two_models_are_in_memory(prepared, alone, monkeypatch):
    alive, held, own = weakref.WeakSet(), [], training.drawn

    def drawn(*arguments):
        held.append(len(alive))
        alive.add(decoder := own(*arguments))
        return decoder

    monkeypatch.setattr(training, "drawn", drawn)
    for _ in range(2):
        training.measure(prepared, LARGE, ONE_LAYER, updates=1)
    assert held == [0, 0]


def test_every_backend_is_measured_whatever_auto_takes(options, monkeypatch):
    monkeypatch.setattr(backends, "choose", lambda *_: ("flash", "installed"))
    asked = []
    monkeypatch.setattr(variants, "measure", lambda options, config, change, updates: asked.append(change) or {"x": 1})
    assert {outcome_of(case)["status"] for _, case in variants.cases(options)} == {"ok"}
    assert {change.get("train.backend") for change in asked} >= {"flash", "varlen", "xformers", "sdpa"}


def test_flash_attention_3_and_2_take_turns(options, monkeypatch):
    current = []
    stand_in = SimpleNamespace(
        current_flash_attention_impl=lambda: current[-1] if current else None,
        activate_flash_attention_impl=current.append,
        restore_flash_attention_impl=current.clear,
    )
    ran = []
    monkeypatch.setattr(bands, "attention", stand_in)
    monkeypatch.setattr(bands, "train", lambda *_: ran.append(current[-1:]))
    monkeypatch.setattr(bands.backends, "activate", lambda device: None)
    assert bands.measure(options, 64, "FA3")["ratio_to_FA2"] > 0
    assert ran == [[], ["FA3"]] * (1 + TOY.turns)
    monkeypatch.setattr(bands.backends, "activate", lambda device: "")
    with pytest.raises(Skipped, match="is not installed"):
        bands.measure(options, 64, "FA3")


def test_a_save_spans_from_its_beginning_to_its_name(options, monkeypatch):
    fit = fits.Fit(options, SMALL, "small", {})
    folder, clock = fit.folder / "checkpoints", SimpleNamespace(now=0.0)
    folder.mkdir(parents=True)
    (folder / "untrained.json").touch()  # before the first step

    def sleep(seconds):
        """Train for 0.5 s and save for 0.03."""
        clock.now += seconds
        if clock.now >= 0.5 and not any(folder.glob("tokens-*")):
            (folder / ".writing").mkdir(exist_ok=True)
            (fit.folder / "metrics.jsonl").write_text('{"step": 1}\n')
        if clock.now >= 0.53 and (folder / ".writing").exists():
            (folder / ".writing").rename(folder / "tokens-000000002048")

    monkeypatch.setattr(fits, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    endless = MagicMock(returncode=None, poll=lambda: None)
    endless.__enter__.return_value = endless
    monkeypatch.setattr(fits, "subprocess", SimpleNamespace(Popen=lambda words, **_: endless))
    found = fit.kill_at_checkpoint()
    assert (found["save_begins_s"], found["save_s"]) == pytest.approx((0.5, 0.03), abs=2 * fits.POLL_S)


def test_after_a_small_run_that_was_cut_there_is_nothing_to_compare_with(options, monkeypatch):
    for fit, steps in ((fsdp.whole(options), 7), (fsdp.sharded(options), 20)):
        (fit.folder / "checkpoints" / "tokens-000000002048").mkdir(parents=True)
        (fit.folder / "metrics.jsonl").write_text('{"loss": 1.0, "grad_norm": 1.0}\n' * steps)
    monkeypatch.setattr(fits, "call", lambda words, log: 1.0)  # the resumed run goes to its end
    outcome = outcome_of(partial(fsdp.resume, options))
    assert outcome["status"] == "skipped"
    assert outcome["reason"].startswith("the small run has 7 of 20 steps to compare with; ")


@pytest.mark.parametrize("words", [["--only=one"], []], ids=["only", "all"])
def test_only_leaves_the_files_of_other_stages(words, tmp_path, monkeypatch):
    monkeypatch.setattr(on_gpu, "PARTS", {"first": (Stage("one", "tests.benchmarks.stages.dies", 60),)})
    (tmp_path / "work" / "runs" / "other").mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["on_gpu", "--toy", f"--out={tmp_path}", *words])
    with pytest.raises(SystemExit):
        on_gpu.main()
    assert (tmp_path / "work" / "runs" / "other").exists() == bool(words)


def test_missing_packages_are_named_before_anything_else(tmp_path):
    words = [sys.executable, "-S", "-m", "benchmarks.on_gpu", "--out", str(tmp_path / "out")]  # no installed package
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("not installed: torch")
    assert "pydantic>=2.12" in line
    assert "--wheels" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_missing_packages_are_installed_from_wheels_without_a_network(tmp_path, monkeypatch):
    about = "Metadata-Version: 2.1\nName: made-up\nVersion: 1.5\n"
    with zipfile.ZipFile(tmp_path / "made_up-1.5-py3-none-any.whl", "w") as wheel:
        wheel.writestr("made_up.py", "")
        wheel.writestr("made_up-1.5.dist-info/METADATA", about)
        wheel.writestr("made_up-1.5.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("made_up-1.5.dist-info/RECORD", "")
    site = tmp_path / "site"
    monkeypatch.setenv("PIP_TARGET", str(site))
    monkeypatch.syspath_prepend(site)
    needed = ["torch>=2.11", "made_up>=1.2"]
    assert on_gpu.missing(needed) == ["made_up>=1.2"]
    on_gpu.install(on_gpu.missing(needed), tmp_path)
    assert (site / "made_up.py").exists()
    assert on_gpu.missing(needed) == []


def test_clock_and_power_stand_beside_figures(tmp_path, monkeypatch):
    script = tmp_path / "nvidia-smi"
    script.write_text(
        '#!/bin/sh\n[ "$1" = "--query-gpu=utilization.gpu,clocks.sm,power.draw" ] && echo "97, 1755, 652.3"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    run_stages([Stage("one", "tests.benchmarks.stages.raises", 60)], tmp_path, toy=True)
    states = [r.figures for r in record.read(tmp_path / "results.jsonl") if r.status == "ok"]
    assert states == [{"x": x, "sm_clock_mhz": 1755.0, "power_w": 652.3} for x in (1, 2)]


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


@pytest.mark.slow
def test_all_tests_marked_gpu_are_selected(options):
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-q", "-m", "gpu"]  # a line per file: its number
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    numbers = [int(line.rpartition(": ")[2]) for line in done.stdout.splitlines() if line.startswith("tests/")]
    with pytest.raises(Skipped if not torch.cuda.is_available() else ()):
        gpu_tests.run_tests(options)
    found = gpu_tests.selection((options.out / "gpu_tests.txt").read_text())
    assert found["selected"] == sum(numbers)
    results = gpu_tests.RESULT.findall((options.out / "gpu_tests.txt").read_text())
    assert len(results) == sum(numbers), "every result is in the file"
