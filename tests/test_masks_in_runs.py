"""Masks and skips as settings of a run: rules between sections, whole runs, what they count and how they resume."""

import numpy as np
import pytest

from lab.errors import ConfigError
from tests.fits import SPEED, UNPROBED, cut_after, load, records, train
from tests.refusals import refused
from tests.replay import assert_same_weights, pairs_of, replayed

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
SHORT = (*UNPROBED, "--train.tokens=6144", "--train.checkpoint_every_tokens=2048", "--train.keep_checkpoints=9")


# rules between sections

MODE, WHOLE = "needs windows of several documents", "needs mask: causal without chunks"
FROM_0 = "position.distance.method=string: training with it needs ids that count up from 0 in every document"
POSE = ("--skip.method=pose", "--skip.target_len=200")
RPES = ("--skip.method=rpes", "--skip.target_len=200")
DOCUMENT = (*JOINED, *STRING, "--mask.method=document")
COUNTED, NOTHING = "the longest distance counted plus one", "must be > data.window=96, or there is nothing to skip"
REFUSED = {
    "document_by_document": (["--mask.method=document"], [f"mask.method=document: {MODE}"]),
    "anchor_by_document": (["--mask.method=anchor"], [f"mask.method=anchor: {MODE}"]),
    "chunks_of_one_document": (["--mask.chunks=3"], [f"mask.chunks=3: {MODE}"]),
    "anchor_in_uniform_lengths": (
        ["--mask.method=anchor", "--mask.chunks=3", "--data.mode=uniform"],
        [f"mask.method=anchor: {MODE}"],
    ),
    "skip_anchor": ([*ANCHOR, *POSE], [f"skip.method=pose: {WHOLE}"]),
    "skip_chunks": ([*JOINED, "--mask.chunks=2", *RPES], [f"skip.method=rpes: {WHOLE}"]),
    "nothing_to_skip": ([RPES[0], "--skip.target_len=96"], [f"skip.target_len=96: {NOTHING}"]),
    "string_anchor": ([*ANCHOR, *STRING], [FROM_0]),
    "string_running": ([*DOCUMENT, "--mask.ids=running"], [FROM_0]),
    "string_chunks": ([*DOCUMENT, "--mask.chunks=2"], [FROM_0]),
    "string_skip": ([*STRING, *POSE], [FROM_0]),
    "all_at_once": (
        [*STRING, "--mask.method=anchor", POSE[0], "--skip.target_len=90"],
        [f"mask.method=anchor: {MODE}", f"skip.method=pose: {WHOLE}", f"skip.target_len=90: {NOTHING}", FROM_0],
    ),
}


@pytest.mark.parametrize(("words", "starts"), REFUSED.values(), ids=REFUSED)
def test_masks_and_skips_that_do_not_fit_the_run_are_refused(words, starts):
    with refused(*starts, error=ConfigError):
        load(*words)


# whole runs


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Train every run of RUNS."""
    place = tmp_path_factory.mktemp("masks")
    for name, own in RUNS.items():
        train(place, name, *SHORT, *own)
    return place


@pytest.mark.parametrize("name", RUNS)
def test_a_run_counts_every_pair_that_attention_saw(place, name):
    """In every line of metrics.jsonl, at the positions that belong to the longest distance, and in counts.npz."""
    run = place / "runs" / name
    experiment, steps = replayed(run)
    assert (len(steps), len(steps[0])) == (6, 2)
    reach, lines = experiment.reach, records(run)
    assert reach == (TARGET_LEN if name in SKIPS else 96)
    found = np.zeros(reach, dtype=np.int64)
    for step, (line, packs) in enumerate(zip(lines, steps, strict=True), start=1):
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
    assert counts["tokens"] == sum(sum(pack.lengths) for packs in steps for pack in packs)


def test_an_anchored_run_resumes_bit_for_bit(place, capsys):
    whole = place / "runs" / "anchor_chunks"
    assert len(list((whole / "checkpoints").glob("tokens-*"))) == 3
    cut = cut_after(whole, place / "runs" / "resumed")
    (cut / "counts.npz").unlink()
    train(place, "resumed", *SHORT, *RUNS["anchor_chunks"], resume=True)
    assert "; continues at " in capsys.readouterr().out
    assert records(cut, without=SPEED) == records(whole, without=SPEED)
    for key in ("f", "lengths", "tokens"):
        np.testing.assert_array_equal(np.load(cut / "counts.npz")[key], np.load(whole / "counts.npz")[key])
    assert_same_weights(cut, whole)
