"""The whole program, run as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.counts import SavedCounts, f_at

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "cpu_test.yaml"
FRACTIONS = ("0.125", "0.25", "0.5", "0.75")
EXACT = ("step", "consumed_tokens", "loss", "lr", "grad_norm", *(f"f_at_{x}L" for x in FRACTIONS), "share_le_half")
LOSS_TOLERANCE = 2e-3  # float32 on another processor: other kernels, other rounding, 20 steps of it
ROUNDED = ("held_out_loss", "context_loss", "log_prob")
ROUNDED_TOLERANCE = 1e-4  # nats; sums in another order, of up to six tokens
LONG = ("--train.tokens=200000", "--train.checkpoint_every_tokens=30000", "--probe.every_tokens=60000")


def command(place: Path, name: str, *options: str, module: str = "lab.fit", config: Path = CONFIG) -> list[str]:
    where = [f"--run.folder={place / 'runs'}", f"--data.folder={place / 'shards'}", f"--run.name={name}"]
    return [sys.executable, "-m", module, str(config), *where, *options]


def fit(place: Path, name: str, *options: str, status: int = 0, config: Path = CONFIG) -> Path:
    done = subprocess.run(
        command(place, name, *options, config=config), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return place / "runs" / name


def records(run: Path, name: str = "metrics.jsonl") -> list[dict]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def exact_metrics(run: Path) -> list[tuple]:
    return [tuple(record[key] for key in EXACT) for record in records(run)]


def probed(run: Path) -> list[dict]:
    """Leave out what two runs cannot have in common: their names, the time they took, weights before they are saved."""
    apart = ("model", "seconds", "weights")
    return [{k: v for k, v in record.items() if k not in apart} for record in records(run, "probes.jsonl")]


def assert_same_tests(run: Path, other: Path) -> None:
    """Compare what two runs probed, whose weights and sums were rounded otherwise."""
    names = [path.name for path in sorted((other / "cases").iterdir())]
    assert [path.name for path in sorted((run / "cases").iterdir())] == names
    for name in ("probes.jsonl", *(f"cases/{name}" for name in names)):
        for mine, theirs in zip(records(run, name), records(other, name), strict=True):
            assert mine.keys() == theirs.keys()
            apart = (*ROUNDED, "model", "seconds")
            assert {k: v for k, v in mine.items() if k not in apart} == {
                k: v for k, v in theirs.items() if k not in apart
            }
            for key in ROUNDED:
                assert mine.get(key) == pytest.approx(theirs.get(key), abs=ROUNDED_TOLERANCE)


def assert_same_run(run: Path, other: Path) -> None:
    assert exact_metrics(run) == exact_metrics(other)
    assert probed(run) == probed(other)
    assert [p.read_text() for p in sorted((run / "cases").iterdir())] == [
        p.read_text() for p in sorted((other / "cases").iterdir())
    ]
    files = sorted(path.relative_to(run) for path in [run / "counts.npz", *run.glob("counts/*")])
    assert files == sorted(path.relative_to(other) for path in [other / "counts.npz", *other.glob("counts/*")])
    for file in files:
        for key in ("f", "lengths", "tokens"):
            np.testing.assert_array_equal(np.load(run / file)[key], np.load(other / file)[key])


def interrupt(place: Path, name: str, number: signal.Signals, lines: int, *options: str) -> tuple[int, str]:
    """Start the long run and send its process group a signal once metrics.jsonl has so many lines."""
    words = command(place, name, *LONG, *options)
    process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    metrics = place / "runs" / name / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() or metrics.read_text().count("\n") < lines:
        assert time.monotonic() < deadline, "the run never got that far"
        assert process.poll() is None, "the run ended before the signal"
        time.sleep(0.02)
    os.killpg(process.pid, number)  # as a terminal does: a background process gets it too
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fit")


@pytest.fixture(scope="module")
def finished(place):
    return fit(place, "finished")


@pytest.fixture(scope="module")
def long(place):
    return fit(place, "long", *LONG)


def test_run_folder_is_whole(finished):
    names = {path.name for path in finished.iterdir()}
    assert names >= {"config.yaml", "environment.json", "metrics.jsonl", "probes.jsonl", "counts.npz", "cases"}
    metrics = records(finished)
    assert [record["step"] for record in metrics] == list(range(1, 21))
    probes = [record for record in records(finished, "probes.jsonl") if "effective_length" in record]
    assert [probe["consumed_tokens"] // 8192 for probe in probes] == [1, 2, 2]  # two intervals and the end
    environment = json.loads((finished / "environment.json").read_text())
    assert environment["threads"] == 1
    assert environment["versions"]["torch"] == torch.__version__
    tests = [json.loads(line) for line in sorted((finished / "cases").iterdir())[0].read_text().splitlines()]
    needles = [len(test["numbers"]) for test in tests]
    assert needles == [4] * 2 * 4 + [1] * 2 * 4  # lengths 128 and 144, and two distances, four tests each
    assert all(len(test["prompt_hash"]) == 16 for test in tests)
    assert all(sorted(test["distances"], reverse=True) == test["distances"] for test in tests[:8])
    assert {probe["reach"] for probe in probes} == {None}, "nothing is learned in 20 steps"
    for probe in probes:
        lines = [r for r in records(finished, "probes.jsonl") if r["consumed_tokens"] == probe["consumed_tokens"]]
        distances = [line["distance"] for line in lines if "distance" in line]
        assert len(distances) == 2 * len([line for line in lines if "reach" in line])
        assert probe["first_distance"] == distances[0]
        assert [c["distance"] for c in tests[8:]] == sorted(distances[:2] * 4)
        assert min(probe["context_loss"].values()) < probe["held_out_loss"] < max(probe["context_loss"].values())
    assert not list(finished.rglob("*.tmp*"))
    assert not list(finished.rglob(".writing"))


def test_losses_are_the_committed_ones(finished):
    golden = np.loadtxt(ROOT / "tests" / "golden" / "cpu_test_losses.txt")
    np.testing.assert_allclose([record["loss"] for record in records(finished)], golden, atol=LOSS_TOLERANCE)


def test_frequency_is_that_of_the_counts(finished):
    counts = np.load(finished / "counts.npz")
    last = records(finished)[-1]
    brute = [sum(max(n - i, 0) * int(c) for n, c in enumerate(counts["lengths"])) for i in range(96)]
    assert counts["f"].tolist() == brute
    assert counts["f"][0] == last["consumed_tokens"]
    assert [counts["f"][i] for i in (12, 24, 48, 72)] == [last[f"f_at_{x}L"] for x in FRACTIONS]
    assert last["share_le_half"] == pytest.approx(sum(brute[:49]) / sum(brute))
    assert last["share_ge_three_quarters"] == pytest.approx(sum(brute[72:]) / sum(brute))


def test_every_probe_has_its_own_counts(finished):
    metrics = {record["consumed_tokens"]: record for record in records(finished)}
    probed_at = {record["consumed_tokens"] for record in records(finished, "probes.jsonl")}
    saved = {int(path.stem[7:]): SavedCounts.read(path) for path in (finished / "counts").iterdir()}
    assert saved.keys() == probed_at
    for tokens, counts in saved.items():
        assert counts.tokens == tokens == counts.lengths @ np.arange(97)
        line = metrics[tokens]
        assert [f_at(counts, i) for i in (12, 72, 96)] == [line["f_at_0.125L"], line["f_at_0.75L"], None]


def test_probing_changes_nothing(place, finished):
    without = fit(place, "unprobed", "--probe.every_tokens=null", "--probe.loss_tokens=0")
    assert exact_metrics(without) == exact_metrics(finished)


def test_background_packing_changes_nothing(place, finished):
    assert exact_metrics(fit(place, "prefetched", "--data.prefetch=2")) == exact_metrics(finished)


def test_reference_backend_trains_the_same(place, finished):
    reference = fit(place, "reference", "--train.backend=reference", "--train.tokens=5120", "--probe.loss_tokens=0")
    losses = [record["loss"] for record in records(reference)][:4]  # the schedule's length differs after the warm-up
    np.testing.assert_allclose(losses, [record["loss"] for record in records(finished)][:4], atol=1e-4)


def test_ctrl_c_saves_and_resumes_bit_for_bit(place, long):
    status, errors = interrupt(place, "stopped", signal.SIGINT, 40, "--data.prefetch=2")
    assert status == 75
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert len(records(place / "runs" / "stopped")) < len(records(long))
    assert_same_run(fit(place, "stopped", *LONG, "--resume"), long)


def test_kill_loses_nothing_saved_and_resumes_bit_for_bit(place, long):
    status, _ = interrupt(place, "killed", signal.SIGKILL, 80)
    assert status == -signal.SIGKILL
    run = place / "runs" / "killed"
    newest = sorted((run / "checkpoints").glob("tokens-*"))[-1]
    state = newest / "state.ckpt"
    state.write_bytes(state.read_bytes()[:-100])  # the newest is broken as well: the one before it serves
    assert_same_run(fit(place, "killed", *LONG, "--resume"), long)


def test_second_run_is_refused_and_resuming_a_finished_one_reports(place, finished):
    done = subprocess.run(command(place, "finished"), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("run.name=finished: ")
    before = (finished / "metrics.jsonl").read_bytes()
    done = subprocess.run(command(place, "finished", "--resume"), cwd=ROOT, capture_output=True, text=True, check=True)
    assert "already finished" in done.stdout
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_resume_refuses_other_settings(place, finished):
    words = command(place, "finished", "--resume", "--optim.lr=0.001", "--data.window=80")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["data.window=80", "optim.lr=0.001"]


def test_trains_with_the_bare_packages_only(place, finished):
    # matplotlib cannot be blocked here: torchmetrics, which Lightning loads, imports it wherever it is installed
    blocked = ["wandb", "datasets", "pyarrow", "zstandard", "pandas", "flash_attn", "xformers"]
    code = (
        f"import sys, runpy\nfor name in {blocked!r}: sys.modules[name] = None\n"
        f"sys.argv = {command(place, 'bare')[2:]!r}\n"
        "runpy.run_module('lab.fit', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert exact_metrics(place / "runs" / "bare") == exact_metrics(finished)


def test_dashboard_without_its_package_is_one_line(place):
    code = (
        "import sys, runpy\nsys.modules['wandb'] = None\n"
        f"sys.argv = {command(place, 'nowandb', '--track.wandb=offline')[2:]!r}\n"
        "runpy.run_module('lab.fit', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("wandb: not installed")


def test_dashboard_mirrors_offline(place, finished):
    pytest.importorskip("wandb")
    run = fit(place, "mirrored", "--track.wandb=offline", "--track.project=tests")
    assert list((run / "wandb").glob("offline-run-*/*.wandb"))
    assert exact_metrics(run) == exact_metrics(finished)


def test_probe_afterwards_gives_what_training_gave(place, finished):
    words = [sys.executable, "-m", "eval.probe", str(finished), "-o", str(place / "again")]
    subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    last = max(record["consumed_tokens"] for record in records(finished))
    during = [r for r in probed(finished) if r["consumed_tokens"] == last and "length" in r]
    assert [r for r in probed(place / "again") if "length" in r] == during
    names = {r["model"] for folder in (finished, place / "again") for r in records(folder, "probes.jsonl")}
    assert names == {finished.name}
    cases = f"cases/tokens-{last:015d}.jsonl"
    assert (place / "again" / cases).read_text() == (finished / cases).read_text()


def test_a_broken_shard_is_one_line(place, finished):
    shards = next((place / "shards").glob("synthetic-*/task-00000"))
    tokens = shards / "train.tokens.bin"
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[:-8])
    try:
        done = subprocess.run(command(place, "broken"), cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        tokens.write_bytes(whole)
    assert done.returncode == 2
    assert "train.tokens.bin" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow  # encodes the whole standard library
def test_trains_on_real_text(place):
    config = ROOT / "configs" / "cpu_stdlib.yaml"
    small = ("--train.tokens=40960", "--optim.warmup_steps=4", "--probe.tests=2", "--probe.every_tokens=null")
    run = fit(place, "stdlib", *small, "--data.tokenizer.sample_documents=500", config=config)
    losses = [record["loss"] for record in records(run)]
    assert losses[-1] < np.log(4096)  # better than not knowing anything
    assert (run / "picture.png").stat().st_size > 10_000
