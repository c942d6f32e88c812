"""Position methods as settings of a run: rules between sections, what a run says, counts and records."""

import numpy as np
import pytest

from lab.errors import ConfigError
from lab.train.session import announce
from tests.fits import command, load, records
from tests.forked import python
from tests.refusals import refused

STRING = ("--position.distance.method=string", "--position.distance.shift=32", "--position.distance.window=8")
LLAMA3 = ("--position.frequency.method=llama3", "--position.frequency.factor=4", "--position.frequency.train_len=48")


DISTANCE, THETA = "position.distance", "position.frequency.theta=9000.0"
REFUSED = {
    "shift_beyond_the_window": (
        "method=string shift=96 window=9",
        f"{DISTANCE}.shift=96: must be < the length 96, or nothing is shifted",
    ),
    "window_beyond_the_longest_probe": (
        "method=rerope window=143",  # 144 is the longest probe
        f"{DISTANCE}.window=143: must be < 143, the longest distance in 144 tokens, or none is cut",
    ),
    "dca_beyond_the_counter": (
        "method=dca train_len=200 chunk=20 window=4",
        f"{DISTANCE}.train_len=200: must be <= data.window=96, the longest distance that is counted",
    ),
    "base_that_is_no_larger": (
        ["--position.frequency.method=abf", f"--{THETA}"],
        f"{THETA}: must be > model.theta=10000.0 (the adjusted base is larger)",
    ),
    "kernel_that_cannot_merge": (
        [*STRING, "--train.backend=xformers", "--train.accelerator=auto"],
        "train.backend=xformers: returns no log-sum-exp to merge the bands of string by",
    ),
    "varlen_on_a_cpu": (["--train.backend=varlen"], "train.backend=varlen: runs on a CUDA device only"),
}


@pytest.mark.parametrize(("words", "start"), REFUSED.values(), ids=REFUSED)
def test_methods_that_do_not_fit_the_run_are_refused(words, start):
    if isinstance(words, str):
        words = [f"--{DISTANCE}.{word}" for word in words.split()]
    with refused(start, error=ConfigError):
        load(*words)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("place")
    done = python(*command(place, "string", *STRING, *LLAMA3, "--train.tokens=10240")[1:])
    assert done.returncode == 0, done.stderr[-3000:]
    return place / "runs" / "string", done.stdout


@pytest.fixture
def folder(run):
    return run[0]


def test_a_run_counts_the_relative_positions_that_attention_saw(folder):
    counts = np.load(folder / "counts.npz")
    expected = np.zeros(96, dtype=np.int64)
    for length, segments in enumerate(counts["lengths"]):
        for i in range(length):
            expected[i if i < 32 else i - 24] += segments * (length - i)
    np.testing.assert_array_equal(counts["f"], expected)
    last = records(folder)[-1]
    assert (last["f_at_0.125L"], last["f_at_0.5L"], last["f_at_0.75L"]) == (expected[12], expected[48], 0)


def methods_of(folder):
    return {line["method"] for line in records(folder, "probes.jsonl") if "method" in line}


@pytest.mark.parametrize(
    ("words", "method"),
    [
        pytest.param(None, "string(shift=32,window=8)", id="in_training"),
        pytest.param([], "string(shift=32,window=8)", id="afterwards"),
        pytest.param(
            ["--position.distance.method=dca", "--position.distance.train_len=64"], "dca(train_len=64)", id="another"
        ),
    ],
)
def test_a_probe_records_its_methods_with_their_parameters(folder, tmp_path, words, method):
    probes = folder
    if words is not None:
        done = python("-m", "eval.probe", folder, "--tests=2", "--max_length=128", "-o", tmp_path / "again", *words)
        assert done.returncode == 0, done.stderr[-3000:]
        probes = tmp_path / "again"
    assert methods_of(probes) == {f"llama3(factor=4,train_len=48)+{method}"}


def test_only_a_method_that_changes_nothing_at_its_values_says_so(run):
    words = ["--position.frequency.method=pi", "--position.frequency.factor=1"]
    words += ["--position.distance.method=leaky_rerope", "--position.distance.window=8", "--position.distance.leak=1"]
    assert [line for line in announce(load(*words), None).splitlines() if line.startswith("position")] == [
        "position.frequency: pi(factor=1) is plain RoPE at these values",
        "position.distance: leaky_rerope(window=8,leak=1) is plain distance at these values",
    ]
    assert "is plain" not in run[1]
