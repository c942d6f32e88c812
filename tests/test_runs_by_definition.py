"""A run under any settings counts pairs, demand and samples as definitions do, and resumes bit for bit."""

import itertools
import json

import numpy as np
import pytest

import lab
from lab.data.tokenizer import load_tokenizer, vocabulary_hash
from tests.evidence import brute
from tests.fits import SPEED, UNPROBED, assert_same_run, cut_after, fit, load, records, train
from tests.refusals import refused
from tests.replay import assert_same_weights, pairs_of, replayed

JOINED = ("--data.mode=concatenated",)
DOCUMENT = (*JOINED, "--mask.method=document", "--mask.ids=running")
POSE = ("--skip.method=pose", "--skip.target_len=240")
LONGRECIPE = ("--skip.method=longrecipe", "--skip.target_len=240")
LAYERS = ("--model.layers.pattern=[window,part]", "--model.layers.window=20", "--model.layers.fraction=0.5")
FAR = ("--weights.by=evidence", "--weights.keep=[[0,9],[20,40]]")
NEAR = ("--weights.by=evidence", "--weights.keep=[[0,30]]")
RUNS = {
    "plain": (),
    "running_chunks": (*DOCUMENT, "--mask.chunks=3"),
    "anchor_chunks": (*JOINED, "--mask.method=anchor", "--mask.chunks=3"),
    "document": (*JOINED, "--mask.method=document"),
    "pose": POSE,
    "longrecipe": LONGRECIPE,
    "layers": LAYERS,
    "far": (*FAR, "--evidence.tokens=2"),
    "near": (*NEAR, "--weights.control=near", "--weights.fraction=0.5"),
    "random": (*FAR, "--weights.control=random"),
    "ids": (*JOINED, *POSE, *FAR, "--weights.distance=ids"),
    "selection": (*JOINED, *LONGRECIPE),
    "random_selection": (*JOINED, *LONGRECIPE, "--skip.selection=random"),
}
RESUMED = ("anchor_chunks", "layers", "near", "selection")
SHORT = (*UNPROBED, "--train.tokens=6144", "--train.checkpoint_every_tokens=2048", "--train.keep_checkpoints=9")
STRING = ("--position.distance.method=string", "--position.distance.shift=32", "--position.distance.window=8")
LLAMA3 = ("--position.frequency.method=llama3", "--position.frequency.factor=4", "--position.frequency.train_len=48")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with shards, and an analysis of them whose token types are two digits."""
    place = tmp_path_factory.mktemp("runs")
    train(place, "plain", *SHORT)
    tokenizer = load_tokenizer(place / "runs" / "plain")
    ids = [tokenizer.token_to_id(digit) for digit in "47"]
    (place / "impact").mkdir()
    impact = {"tokenizer": vocabulary_hash(tokenizer), "token_ids": ids}
    (place / "impact" / "impact.json").write_text(json.dumps(impact))
    return place


def words_of(place, name):
    return (*SHORT, *RUNS[name], *([f"--skip.selection={place / 'impact'}"] if name == "selection" else ()))


@pytest.fixture
def trained(place):
    """Train a row of RUNS, once."""

    def run(name):
        found = place / "runs" / name
        return found if found.exists() else train(place, name, *words_of(place, name))

    return run


@pytest.mark.parametrize("name", RUNS)
def test_f_is_that_of_every_pair_that_attention_saw(trained, name):
    """In every line of metrics.jsonl, at the positions that belong to the longest distance, and in counts.npz."""
    run = trained(name)
    experiment, steps = replayed(run)
    assert (len(steps), len(steps[0])) == (6, 2)
    reach, lines = experiment.reach, records(run)
    assert reach == (240 if experiment.skip else 96)
    found, samples = np.zeros(reach, dtype=np.int64), np.zeros(3, dtype=np.int64)
    for step, (line, packs) in enumerate(zip(lines, steps, strict=True), start=1):
        for pack in packs:
            found += np.bincount(pairs_of(pack), minlength=reach)
            samples += pack.selected if "selection" in name else 0
        assert (line["step"], line["consumed_tokens"]) == (step, found[0])
        assert [line[f"f_at_{x / 8:g}L"] for x in (1, 2, 4, 6)] == [found[reach * x // 8] for x in (1, 2, 4, 6)]
        assert line["share_le_half"] == pytest.approx(found[: reach // 2 + 1].sum() / found.sum())
        if "selection" in name:
            assert [line[key] for key in ("samples", "samples_unmatched", "samples_short")] == samples.tolist()
    counts = lab.open_run(run).counts()
    assert counts.f.tolist() == found.tolist()
    assert counts.tokens == sum(sum(pack.lengths) for packs in steps for pack in packs)
    kinds = {"window": found * (np.arange(reach) < 20), "part": found} if name == "layers" else {}
    assert {kind: f.tolist() for kind, f in counts.kinds.items()} == {kind: f.tolist() for kind, f in kinds.items()}
    assert (run / "impact.json").exists() == (name == "selection")
    if name == "random_selection":
        assert samples[1] == samples[2] == 0
        assert found[0] == 960 * 6, "ten samples of 96 tokens fill what they can of 1,024"


def demand(packs, n, reach, by_ids=False):
    expected = np.zeros(reach)
    for pack in packs:
        ids = pack.position_ids if by_ids else None
        found = brute.demand(pack.tokens, pack.targets, pack.lengths, lambda x, p: brute.repeat(x, p, n), ids=ids)
        expected[[*found]] += [*found.values()]
    return expected


@pytest.mark.parametrize("name", RUNS)
def test_g_is_that_of_a_search_by_definition_where_the_weights_leave_it(trained, name):
    run = trained(name)
    experiment, steps = replayed(run)
    packs, n = [*itertools.chain(*steps)], experiment.evidence.tokens
    before, counts = demand(packs, n, experiment.reach), lab.open_run(run).counts()
    assert counts.g_unweighted.tolist() == before.tolist()
    assert before.sum() > 200
    distances, last = np.arange(experiment.reach), records(run)[-1]
    kept = (distances <= 9) | ((distances >= 20) & (distances <= 40))
    if name == "far":
        assert counts.g.tolist() == np.where(kept, before, 0).tolist() != before.tolist()
    elif name == "near":
        lost, outside = before - counts.g, before[31:].sum()
        assert lost[:31].sum() == lost.sum()
        assert abs(lost.sum() - outside / 2) < 2 * np.sqrt(outside), "as many as half of those outside"
    elif name == "random":
        weighed, whole = (np.load(each / "counts.npz") for each in (run, trained("plain")))
        assert weighed["f"].tolist() == whole["f"].tolist()
        assert whole["supervised_f"][0] - weighed["supervised_f"][0] == before[~kept].sum()
    elif name != "ids":
        assert counts.g.tolist() == before.tolist()
        assert last["g_from_0.5L"] == before[experiment.reach // 2 :].sum()
    if packs[0].position_ids is None:
        assert counts.g_by_ids is None
        return
    by_ids = demand(packs, n, experiment.reach, by_ids=True)
    if name == "ids":
        assert by_ids[~kept].sum() > 60
        by_ids[~kept] = 0
    assert counts.g_by_ids.tolist() == by_ids.tolist()
    assert (by_ids != counts.g).any() == bool(experiment.skip or experiment.mask.chunks), "gaps move evidence"
    assert counts.g_from(41) == by_ids[41:].sum(), "the demand is read in ids where these have gaps"


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_resumes_bit_for_bit(trained, place, name):
    whole = trained(name)
    cut = cut_after(whole, place / "runs" / f"resumed_{name}")
    train(place, cut.name, *words_of(place, name), resume=True)
    assert records(cut, without=SPEED) == records(whole, without=SPEED)
    assert_same_run(cut, whole)
    assert_same_weights(cut, whole)


def test_utilisation_is_recorded_by_causal_and_by_all_pairs(place, monkeypatch):
    monkeypatch.setattr("lab.train.record.peak_flops", lambda name: 1e12)
    cfg = load(*SHORT).model
    weights = 6 * cfg.n_matrix_parameters
    for line in records(train(place, "utilised", *UNPROBED, "--train.tokens=2048", "--optim.warmup_steps=1")):
        for name, pairs in (("mfu", 96 / 2), ("mfu_full", 96)):  # of windows of 96
            flops = weights + 12 * cfg.n_layers * cfg.d_model * pairs
            assert line[name] == pytest.approx(flops * line["tokens_per_s"] / 1e12, rel=1e-3)


def test_relative_positions_are_counted_and_the_method_recorded(place):
    folder = fit(place, "string", *STRING, *LLAMA3, "--train.tokens=10240")
    counts = np.load(folder / "counts.npz")
    expected = np.zeros(96, dtype=np.int64)
    for length, segments in enumerate(counts["lengths"]):
        for i in range(length):
            expected[i if i < 32 else i - 24] += segments * (length - i)
    np.testing.assert_array_equal(counts["f"], expected)
    named = {line["method"] for line in records(folder, "probes.jsonl") if "method" in line}
    assert named == {"llama3(factor=4,train_len=48)+string(shift=32,window=8)"}


def test_a_kind_of_layer_that_is_not_there_is_refused(trained):
    with refused(f"kind=nope: {trained('layers')} has no such layers, {{}}"):
        lab.open_run(trained("layers")).f(kind="nope")
