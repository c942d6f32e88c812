"""Masks and skips as settings of a run: rules between sections, whole runs, what they count and how they resume."""

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.config import load_experiment
from lab.data.module import PackedData
from lab.errors import ConfigError
from lab.settings import parse_overrides
from lab.source.weights import read_weights

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "cpu_test.yaml"
JOINED = ("--data.mode=concatenated",)
ANCHOR = (*JOINED, "--mask.method=anchor")
STRING = ("--position.distance.method=string", "--position.distance.shift=32", "--position.distance.window=8")
TARGET_LEN = 240
RUNS = {
    "causal_chunks": (*JOINED, "--mask.method=causal", "--mask.chunks=3"),
    "reset": (*JOINED, "--mask.method=document"),
    "running_chunks": (*JOINED, "--mask.method=document", "--mask.ids=running", "--mask.chunks=3"),
    "anchor_chunks": (*ANCHOR, "--mask.chunks=3"),
    "pose": ("--skip.method=pose", f"--skip.target_len={TARGET_LEN}"),
    "rpes": ("--skip.method=rpes", f"--skip.target_len={TARGET_LEN}"),
    "longrecipe": ("--skip.method=longrecipe", f"--skip.target_len={TARGET_LEN}"),
}
SKIPS = ("pose", "rpes", "longrecipe")
UNPROBED = ("--probe.every_tokens=null", "--probe.loss_tokens=0")
SAVED = ("--train.keep_checkpoints=9",)
TRAIN_ALL = """
import json, sys
from pathlib import Path
from lab.config import load_experiment
from lab.session import run_experiment
from lab.settings import parse_overrides
from lab.source.weights import read_weights
config, words = Path(sys.argv[1]), json.loads(sys.argv[2])
raise SystemExit(max(run_experiment(load_experiment(config, parse_overrides(w)), False, "again") for w in words))
"""


def load(*words):
    return load_experiment(CONFIG, parse_overrides(words))


# rules between sections

MODE = "needs windows of several documents; set data.mode: concatenated"
WHOLE = "goes with mask: causal without chunks; leave one of them out"
FROM_0 = (
    "training with it needs ids that count up from 0 in every document; use plain distance, and the method when "
    "evaluating"
)


@pytest.mark.parametrize(
    ("words", "faults"),
    [
        pytest.param(["--mask.method=document"], [f"mask.method=document: {MODE}"], id="document_by_document"),
        pytest.param(["--mask.method=anchor"], [f"mask.method=anchor: {MODE}"], id="anchor_by_document"),
        pytest.param(["--mask.chunks=3"], [f"mask.chunks=3: {MODE}"], id="chunks_of_one_document"),
        pytest.param(
            ["--mask.method=anchor", "--mask.chunks=3", "--data.mode=uniform"],
            [f"mask.method=anchor: {MODE}"],
            id="anchor_in_uniform_lengths",
        ),
        pytest.param(
            [*ANCHOR, "--skip.method=pose", "--skip.target_len=200"], [f"skip.method=pose: {WHOLE}"], id="skip_anchor"
        ),
        pytest.param(
            [*JOINED, "--mask.chunks=2", "--skip.method=rpes", "--skip.target_len=200"],
            [f"skip.method=rpes: {WHOLE}"],
            id="skip_chunks",
        ),
        pytest.param(
            ["--skip.method=rpes", "--skip.target_len=96"],
            ["skip.target_len=96: must be > data.window=96, or there is nothing to skip; raise it"],
            id="nothing_to_skip",
        ),
        pytest.param([*ANCHOR, *STRING], [f"position.distance.method=string: {FROM_0}"], id="string_anchor"),
        pytest.param(
            [*JOINED, *STRING, "--mask.method=document", "--mask.ids=running"],
            [f"position.distance.method=string: {FROM_0}"],
            id="string_running",
        ),
        pytest.param(
            [*JOINED, *STRING, "--mask.method=document", "--mask.chunks=2"],
            [f"position.distance.method=string: {FROM_0}"],
            id="string_chunks",
        ),
        pytest.param(
            [*STRING, "--skip.method=pose", "--skip.target_len=200"],
            [f"position.distance.method=string: {FROM_0}"],
            id="string_skip",
        ),
        pytest.param(
            [*STRING, "--mask.method=anchor", "--skip.method=pose", "--skip.target_len=90"],
            [
                f"mask.method=anchor: {MODE}",
                f"skip.method=pose: {WHOLE}",
                "skip.target_len=90: must be > data.window=96, or there is nothing to skip; raise it",
                f"position.distance.method=string: {FROM_0}",
            ],
            id="all_at_once",
        ),
        pytest.param(
            ["--count.positions=[95,96]"],
            ["count.positions=96: must be < 96, the longest distance counted plus one; leave it out"],
            id="count_beyond_the_window",
        ),
        pytest.param(
            ["--skip.method=rpes", "--skip.target_len=200", "--count.positions=[199,200]"],
            ["count.positions=200: must be < 200, the longest distance counted plus one; leave it out"],
            id="count_beyond_the_target",
        ),
    ],
)
def test_masks_and_skips_that_do_not_fit_the_run_are_refused(words, faults):
    with pytest.raises(ConfigError) as caught:
        load(*words)
    assert list(caught.value.faults) == faults


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([*JOINED, *STRING], id="string_in_full_windows"),
        pytest.param([*JOINED, *STRING, "--mask.method=document"], id="string_in_documents"),
        pytest.param([*JOINED, "--skip.method=pose", "--skip.target_len=97"], id="skip_in_full_windows"),
        pytest.param(["--data.mode=uniform", "--skip.method=rpes", "--skip.target_len=97"], id="skip_in_all_lengths"),
    ],
)
def test_masks_and_skips_that_fit_are_taken(words):
    load(*words)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        pytest.param(["--mask.ids=running"], "mask.ids", id="ids_of_causal"),
        pytest.param([*ANCHOR, "--mask.ids=running"], "mask.ids", id="ids_of_anchor"),
        pytest.param([*JOINED, "--mask.method=document", "--mask.chunks=1"], "mask.chunks", id="one_chunk"),
        pytest.param(["--skip.method=pose"], "skip.target_len", id="no_target"),
        pytest.param(["--skip.method=yarn", "--skip.target_len=200"], "skip.method", id="unknown_skip"),
        pytest.param(["--mask.method=full"], "mask.method", id="unknown_mask"),
    ],
)
def test_settings_of_another_mask_or_skip_are_refused(words, key):
    with pytest.raises(ConfigError) as caught:
        load(*words)
    assert [fault.split("=")[0].split(":")[0] for fault in caught.value.faults] == [key]


def test_the_counter_reaches_as_far_as_the_ids():
    assert load(*ANCHOR).reach == load(*JOINED, "--mask.method=document", "--mask.ids=running").reach == 96
    skipped = load("--skip.method=rpes", "--skip.target_len=240")
    assert (skipped.reach, [*skipped.logged_positions.values()]) == (240, [30, 60, 120, 180])


# whole runs


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Train every run of RUNS, in one process after one another."""
    place = tmp_path_factory.mktemp("masks")
    where = [f"--run.folder={place / 'runs'}", f"--data.folder={place / 'shards'}", *UNPROBED, *SAVED]
    words = [[*where, f"--run.name={name}", *own] for name, own in RUNS.items()]
    start(["-c", TRAIN_ALL, str(CONFIG), json.dumps(words)])
    return place


def start(words):
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def records(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def replayed(run):
    """Take the packs of all 20 steps again, from the run's own config."""
    experiment = load_experiment(run / "config.yaml")
    train = experiment.train
    data = PackedData(
        experiment.data,
        seed=experiment.run.seed,
        micro_batch_tokens=train.micro_batch_tokens,
        n_streams=train.n_packs,
        mask=experiment.mask,
        skip=experiment.skip,
    )
    data.setup("fit")
    assert (train.steps, train.n_packs) == (20, 2)
    return experiment, [list(itertools.islice(data.stream(j), train.steps)) for j in range(train.n_packs)]


def pairs_of(pack):
    """List the distance of every pair of the dense mask of a pack."""
    n = sum(pack.lengths)
    run_of = np.repeat(np.arange(len(pack.lengths)), pack.lengths)
    ids = pack.position_ids
    if ids is None:
        ids = np.concatenate([np.arange(length) for length in pack.lengths])
    places = np.arange(n)
    sees = (run_of[:, None] == run_of) & (places[:, None] >= places)
    if pack.anchors is not None:
        sees |= np.array(pack.anchors)[run_of][:, None] == places
    return (ids[:n, None] - ids[:n])[sees]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_counts_every_pair_that_attention_saw(place, name):
    """In every line of metrics.jsonl, at the positions that belong to the longest distance, and in counts.npz."""
    run = place / "runs" / name
    experiment, streams = replayed(run)
    reach, lines = experiment.reach, records(run)
    assert reach == (TARGET_LEN if name in SKIPS else 96)
    found = np.zeros(reach, dtype=np.int64)
    for step, (line, packs) in enumerate(zip(lines, zip(*streams, strict=True), strict=True), start=1):
        for pack in packs:
            found += np.bincount(pairs_of(pack), minlength=reach)
        assert (line["step"], line["consumed_tokens"]) == (step, found[0])
        logged = {key: value for key, value in line.items() if key.startswith("f_")}
        places = {"0.125": reach // 8, "0.25": reach // 4, "0.5": reach // 2, "0.75": 3 * reach // 4}
        assert logged == {f"f_at_{fraction}L": found[i] for fraction, i in places.items()}
        assert line["share_le_half"] == pytest.approx(found[: reach // 2 + 1].sum() / found.sum())
        assert line["share_ge_three_quarters"] == pytest.approx(found[3 * reach // 4 :].sum() / found.sum())
    assert lines[-1]["loss"] < lines[0]["loss"]
    counts = np.load(run / "counts.npz")
    np.testing.assert_array_equal(counts["f"], found)
    assert counts["tokens"] == sum(sum(pack.lengths) for stream in streams for pack in stream)


def test_the_distances_that_masks_and_skips_show(place):
    frequencies = {name: np.load(place / "runs" / name / "counts.npz")["f"] for name in RUNS}
    # windows of 96 tokens that are one run each: f(i) / f(0) = (96 - i) / 96 to the last token
    whole = frequencies["causal_chunks"]
    assert (whole * 96 == whole[0] * (96 - np.arange(96))).all()
    # a document seen alone has as many pairs in chunks as whole, but further apart; a window has more
    reset, running = frequencies["reset"], frequencies["running_chunks"]
    assert reset.sum() == running.sum() < whole.sum()
    assert reset[48:].sum() < running[48:].sum()
    # skips show distances beyond the window, on as many tokens
    for name in SKIPS:
        assert frequencies[name][96:].any()
    assert len({frequencies[name][0] for name in SKIPS}) == len({frequencies[name].sum() for name in SKIPS}) == 1


def test_an_anchored_run_resumes_bit_for_bit(place):
    whole, cut = place / "runs" / "anchor_chunks", place / "runs" / "resumed"
    shutil.copytree(whole, cut)
    saved = sorted((cut / "checkpoints").glob("tokens-*"))
    assert len(saved) == 3
    for checkpoint in saved[1:]:
        shutil.rmtree(checkpoint)
    (cut / "counts.npz").unlink()
    words = [f"--run.folder={place / 'runs'}", f"--data.folder={place / 'shards'}", *UNPROBED, *SAVED]
    said = start(["-m", "lab.fit", str(CONFIG), *words, "--run.name=resumed", "--resume", *RUNS["anchor_chunks"]])
    assert "; continues at " in said
    speed = ("tokens_per_s", "mfu", "mfu_pairs")
    again, before = (
        [{k: v for k, v in line.items() if k not in speed} for line in records(run)] for run in (cut, whole)
    )
    assert again == before
    for key in ("f", "lengths", "tokens"):
        np.testing.assert_array_equal(np.load(cut / "counts.npz")[key], np.load(whole / "counts.npz")[key])
    states = [read_weights(run) for run in (cut, whole)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
