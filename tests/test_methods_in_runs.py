"""Masks, skips and position methods as settings of a run: rules between sections, what whole runs count and record."""

import numpy as np
import pytest

import lab
from lab.config import TrainConfig
from lab.errors import ConfigError
from tests.fits import SPEED, UNPROBED, cut_after, fit, load, records, train
from tests.forked import python
from tests.refusals import refused
from tests.replay import assert_same_weights, pairs_of, replayed

GIB = 2**30
JOINED = ("--data.mode=concatenated",)
ANCHOR = (*JOINED, "--mask.method=anchor")
STRING = ("--position.distance.method=string", "--position.distance.shift=32", "--position.distance.window=8")
LLAMA3 = ("--position.frequency.method=llama3", "--position.frequency.factor=4", "--position.frequency.train_len=48")
GROWING = ("--data.schedule.start=7", "--data.schedule.tokens=4096")
POSE = ("--skip.method=pose", "--skip.target_len=240")
KINDS = ("--model.layers.pattern=[window,part]",)
RUNS = {
    "causal_chunks": (*JOINED, "--mask.method=causal", "--mask.chunks=3"),
    "running_chunks": (*JOINED, "--mask.method=document", "--mask.ids=running", "--mask.chunks=3"),
    "anchor_chunks": (*ANCHOR, "--mask.chunks=3"),
    "pose": POSE,
    "blocks": (*JOINED, *GROWING),
    "document_blocks": (*JOINED, "--mask.method=document", "--mask.ids=running", *GROWING),
    "longrecipe": ("--skip.method=longrecipe", "--skip.target_len=240"),
    "layers": (*KINDS, "--model.layers.window=20", "--model.layers.fraction=0.5", "--model.softmax.method=sink"),
}
SHORT = (*UNPROBED, "--train.tokens=6144", "--train.checkpoint_every_tokens=2048", "--train.keep_checkpoints=9")
MODE = "needs windows of several documents"
FROM_0 = "position.distance.method=string: training with it needs ids that count up from 0 in every document"
DISTANCE = "position.distance"
REFUSED = {
    "anchor_by_document": (["--mask.method=anchor"], [f"mask.method=anchor: {MODE}"]),
    "chunks_of_one_document": (["--mask.chunks=3"], [f"mask.chunks=3: {MODE}"]),
    "skip_anchor": ([*ANCHOR, *POSE], ["mask.method=anchor: does not go with skip.method; leave one of them out"]),
    "string_anchor": ([*ANCHOR, *STRING], [FROM_0]),
    "schedule": (
        ["--data.schedule.start=96", "--data.schedule.tokens=100_000_000", *JOINED, "--mask.chunks=2"],
        [
            "mask.chunks=2: does not go with data.schedule.start",
            "data.schedule.start=96: must be < data.window=96",
            "data.schedule.tokens=100000000: must be <= train.tokens=",
        ],
    ),
    "all_at_once": (
        [*STRING, "--mask.method=anchor", POSE[0], "--skip.target_len=90"],
        [
            FROM_0,
            "mask.method=anchor: does not go with skip.method; leave one of them out",
            "skip.target_len=90: must be > data.window=96",
            f"mask.method=anchor: {MODE}",
        ],
    ),
    "shift_beyond_the_window": (
        [STRING[0], "--position.distance.shift=96", "--position.distance.window=9"],
        [f"{DISTANCE}.shift=96: must be < the length 96, or nothing is shifted"],
    ),
    "dca_beyond_the_counter": (
        [f"--{DISTANCE}.{word}" for word in ("method=dca", "train_len=200", "chunk=20", "window=4")],
        [f"{DISTANCE}.train_len=200: must be <= data.window=96"],
    ),
    "window_beyond_the_window": (
        [
            *KINDS,
            "--model.layers.window=96",
            "--model.layers.fraction=0.5",
            "--train.backend=xformers",
            "--train.accelerator=gpu",
            *POSE,
        ],
        [
            "model.layers.window=96: must be < data.window=96, or no pair is hidden",
            "train.backend=xformers: returns no log-sum-exp, which model.layers.window needs",
            "model.layers.window=96: training with it needs ids that count up from 0 in every document",
        ],
    ),
    "sink_by_xformers": (
        ["--model.softmax.method=sink", "--train.backend=xformers", "--train.accelerator=gpu"],
        ["train.backend=xformers: returns no log-sum-exp, which model.softmax.method needs"],
    ),
    "varlen_on_a_cpu": (["--train.backend=varlen"], ["train.backend=varlen: runs on a CUDA device only"]),
}


@pytest.mark.parametrize(("words", "starts"), REFUSED.values(), ids=REFUSED)
def test_methods_that_do_not_fit_the_run_are_refused(words, starts):
    with pytest.raises(ConfigError) as caught:
        load(*words)
    assert len(caught.value.faults) == len(starts)
    assert all(fault.startswith(start) for fault, start in zip(caught.value.faults, starts))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_counts_every_pair_that_attention_saw(place, name):
    """In every line of metrics.jsonl, at the positions that belong to the longest distance, and in counts.npz."""
    run = train(place, name, *SHORT, *RUNS[name])
    experiment, steps = replayed(run)
    assert (len(steps), len(steps[0])) == (6, 2)
    reach, lines = experiment.reach, records(run)
    assert reach == (240 if experiment.skip else 96)
    found = np.zeros(reach, dtype=np.int64)
    for step, (line, packs) in enumerate(zip(lines, steps, strict=True), start=1):
        for pack in packs:
            found += np.bincount(pairs_of(pack), minlength=reach)
        assert (line["step"], line["consumed_tokens"]) == (step, found[0])
        assert [line[f"f_at_{x / 8:g}L"] for x in (1, 2, 4, 6)] == [found[reach * x // 8] for x in (1, 2, 4, 6)]
        assert line["share_le_half"] == pytest.approx(found[: reach // 2 + 1].sum() / found.sum())
    counts = np.load(run / "counts.npz")
    np.testing.assert_array_equal(counts["f"], found)
    assert counts["tokens"] == sum(sum(pack.lengths) for packs in steps for pack in packs)
    kinds = {"window": found * (np.arange(reach) < 20), "part": found} if name == "layers" else {}
    assert lab.open_run(run).counts().kinds.keys() == kinds.keys()
    for kind, expected in kinds.items():
        np.testing.assert_array_equal(lab.open_run(run).f(kind=kind), expected)
    with refused(f"kind=nope: {run} has no such layers, {{}}"):
        lab.open_run(run).f(kind="nope")


@pytest.mark.parametrize("name", ["anchor_chunks", "blocks", "layers"])
def test_a_run_resumes_bit_for_bit(place, name):
    whole = place / "runs" / name
    cut = cut_after(whole, place / "runs" / f"resumed_{name}")
    train(place, f"resumed_{name}", *SHORT, *RUNS[name], resume=True)
    assert records(cut, without=SPEED) == records(whole, without=SPEED)
    np.testing.assert_array_equal(np.load(cut / "counts.npz")["f"], np.load(whole / "counts.npz")["f"])
    assert_same_weights(cut, whole)


def test_utilisation_is_recorded_by_causal_and_by_all_pairs(place, monkeypatch):
    monkeypatch.setattr("lab.train.recording.peak_flops", lambda name: 1e12)
    cfg = load(*SHORT).model
    weights = 6 * cfg.n_matrix_parameters
    for line in records(train(place, "utilised", *SHORT)):
        for name, pairs in (("mfu", 96 / 2), ("mfu_full", 96)):  # of windows of 96
            flops = weights + 12 * cfg.n_layers * cfg.d_model * pairs
            assert line[name] == pytest.approx(flops * line["tokens_per_s"] / 1e12, rel=1e-3)


def test_blocks_grow_with_the_consumed_tokens(place):
    run = place / "runs" / "blocks"
    _, steps = replayed(run)
    # w = 7 + 89 c / 4096 at c = 0, 1024, 2048, 3072: 7, 29.25, 51.5, 73.75
    grown = [7, 29, 51, 73, 96, 96]
    assert [line["window"] for line in records(run)] == grown
    for packs, block in zip(steps, grown, strict=True):
        cut = [min(block, 96 - begin) for begin in range(0, 96, block)]  # of every window
        for pack in packs:
            assert pack.lengths == cut * (len(pack.lengths) // len(cut))
            assert pack.position_ids is None


def test_relative_positions_are_counted_and_methods_recorded_during_and_after_training(place, tmp_path):
    folder = fit(place, "string", *STRING, *LLAMA3, "--train.tokens=10240")
    counts = np.load(folder / "counts.npz")
    expected = np.zeros(96, dtype=np.int64)
    for length, segments in enumerate(counts["lengths"]):
        for i in range(length):
            expected[i if i < 32 else i - 24] += segments * (length - i)
    np.testing.assert_array_equal(counts["f"], expected)
    other = ["--position.distance.method=dca", "--position.distance.train_len=64"]
    done = python("-m", "eval.probe", folder, "--tests=2", "--max_length=128", "-o", tmp_path / "again", *other)
    assert done.returncode == 0, done.stderr[-3000:]
    for probes, method in ((folder, "string(shift=32,window=8)"), (tmp_path / "again", "dca(train_len=64)")):
        named = {line["method"] for line in records(probes, "probes.jsonl") if "method" in line}
        assert named == {f"llama3(factor=4,train_len=48)+{method}"}


def test_what_strategies_resolve_to():
    for settings, on_gpu, expected in (
        ({}, True, "fsdp"),  # bf16
        ({}, False, "single"),
        ({"precision": "fp32"}, True, "single"),
        ({"devices": 2}, False, "ddp"),
        ({"strategy": "ddp", "devices": 2}, True, "ddp"),
    ):
        assert (
            TrainConfig(**{"batch_tokens": 4096, "precision": "bf16"} | settings).resolved_strategy(on_gpu) == expected
        )
    for devices, nodes, expected in ((1, 1, 1), (8, 7, 56), (8, 8, 8)):  # inside nodes from 64 processes on
        batch = {"batch_tokens": 2048 * devices * nodes, "strategy": "fsdp", "precision": "bf16"}
        assert TrainConfig(devices=devices, nodes=nodes, **batch).sharded_over == expected
    # up to 10 GiB stay whole: in bf16 2 bytes a weight, and 4 a gradient that is kept between two micro-batches
    for packs, each in ((2, 2), (4, 6)):
        config = TrainConfig(devices=2, batch_tokens=2048 * packs, precision="bf16")
        assert config.keeps_whole(10 * GIB // each)
        assert not config.keeps_whole(10 * GIB // each + 1)
