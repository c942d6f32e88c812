"""Position methods as settings of a run: rules between sections, what a run says, counts and records."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lab.config import load_experiment
from lab.errors import ConfigError
from lab.settings import parse_overrides

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "cpu_test.yaml"
STRING = ("--position.distance.method=string", "--position.distance.shift=32", "--position.distance.window=8")
LLAMA3 = (
    "--position.frequency.method=llama3",
    "--position.frequency.factor=4",
    "--position.frequency.train_len=48",
)


def load(*words):
    return load_experiment(CONFIG, parse_overrides(words))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        pytest.param(
            ["--position.distance.method=string", "--position.distance.shift=96", "--position.distance.window=9"],
            "position.distance.shift=96: must be < the length 96, or nothing is shifted (the paper allows "
            "L/3 <= S <= L/2); use 32 to 48",
            id="shift_beyond_the_window",
        ),
        pytest.param(
            ["--position.distance.method=rerope", "--position.distance.window=143"],
            "position.distance.window=143: must be < 143, the longest distance in 144 tokens, or none is cut "
            "(min(i, w) with w inside the training length); lower it",  # 144 is the longest probe
            id="window_beyond_the_longest_probe",
        ),
        pytest.param(
            [
                "--position.distance.method=dca",
                "--position.distance.train_len=200",
                "--position.distance.chunk=20",
                "--position.distance.window=4",
            ],
            "position.distance.train_len=200: must be <= data.window=96, the longest distance that is counted; "
            "lower it",
            id="dca_beyond_the_counter",
        ),
        pytest.param(
            ["--position.frequency.method=abf", "--position.frequency.theta=9000.0"],
            "position.frequency.theta=9000.0: must be > model.theta=10000.0 (the adjusted base is larger); raise it, "
            "or set model.theta and method: rope",
            id="base_that_is_no_larger",
        ),
        pytest.param(
            [*STRING, "--train.backend=xformers", "--train.accelerator=auto"],
            "train.backend=xformers: returns no log-sum-exp to merge the bands of string by; use auto",
            id="kernel_that_cannot_merge",
        ),
        pytest.param(
            ["--train.backend=flex"],
            "train.backend=flex: runs on a CUDA device only; use sdpa or auto",
            id="flex_on_a_cpu",
        ),
    ],
)
def test_methods_that_do_not_fit_the_run_are_refused(words, fault):
    with pytest.raises(ConfigError) as caught:
        load(*words)
    assert caught.value.faults == (fault,)


def test_a_method_for_longer_texts_may_change_nothing_in_training_itself():
    experiment = load("--position.distance.method=dca", "--position.distance.train_len=96")
    assert (experiment.position.distance.s, experiment.position.distance.w) == (72, 24)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    words = [f"--run.folder={place}", f"--data.folder={place / 'shards'}", "--run.name=string", *STRING, *LLAMA3]
    done = subprocess.run(
        [sys.executable, "-m", "lab.fit", str(CONFIG), *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return place / "string", done.stdout


def test_a_run_counts_the_relative_positions_that_attention_saw(run):
    folder, _ = run
    counts = np.load(folder / "counts.npz")
    expected = np.zeros(96, dtype=np.int64)
    for length, segments in enumerate(counts["lengths"]):
        for i in range(length):
            expected[i if i < 32 else i - 24] += segments * (length - i)
    np.testing.assert_array_equal(counts["f"], expected)
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["f_at_0.125L"], last["f_at_0.5L"], last["f_at_0.75L"]) == (expected[12], expected[48], 0)


def test_a_run_whose_probes_lie_beyond_its_window_says_so_at_its_start(run):
    (line,) = [line for line in run[1].splitlines() if line.startswith("probe.step=16: ")]
    assert line.startswith("probe.step=16: no probed length fits the window of 96, the first is 128 (")


def test_a_run_records_its_methods_with_their_parameters(run):
    folder, said = run
    lines = [json.loads(line) for line in (folder / "probes.jsonl").read_text().splitlines()]
    assert {line["method"] for line in lines if "method" in line} == {
        "llama3(factor=4,train_len=48)+string(shift=32,window=8)"
    }
    assert "is plain" not in said


def test_a_method_that_changes_nothing_at_its_values_says_so(tmp_path):
    words = [f"--run.folder={tmp_path}", f"--data.folder={tmp_path / 'shards'}", "--run.name=same"]
    words += ["--position.frequency.method=pi", "--position.frequency.factor=1"]
    words += ["--position.distance.method=leaky_rerope", "--position.distance.window=8", "--position.distance.leak=1"]
    done = subprocess.run(
        [sys.executable, "-m", "lab.fit", str(CONFIG), *words, "--train.tokens=8192"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "position.frequency: pi(factor=1) is plain RoPE at these values\n" in done.stdout
    assert "position.distance: leaky_rerope(window=8,leak=1) is plain distance at these values\n" in done.stdout


def test_a_checkpoint_is_probed_with_its_method(run):
    folder, _ = run
    done = subprocess.run(
        [sys.executable, "-m", "eval.probe", str(folder), "--tests=2", "--max_length=128", "-o", str(folder / "again")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first = json.loads((folder / "again" / "probes.jsonl").read_text().splitlines()[0])
    assert first["method"] == "llama3(factor=4,train_len=48)+string(shift=32,window=8)"


def test_a_checkpoint_is_probed_with_another_method(run):
    folder, _ = run
    words = ["--tests=2", "--max_length=128", "-o", str(folder / "other"), "--position.distance.method=dca"]
    done = subprocess.run(
        [sys.executable, "-m", "eval.probe", str(folder), *words, "--position.distance.train_len=64"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first = json.loads((folder / "other" / "probes.jsonl").read_text().splitlines()[0])
    assert first["method"] == "llama3(factor=4,train_len=48)+dca(train_len=64)"
