"""The demand of whole runs: what is counted, weighted and resumed, against a count by definition."""

import itertools
import re

import numpy as np
import pytest

import lab
from lab.counts.demand import UNIT
from lab.data.module import PackedData
from lab.data.tokenizer import load_tokenizer
from tests.evidence import brute
from tests.fits import UNPROBED, assert_same_run, cut_after, load, records, settings_of, train

SHORT = (*UNPROBED, "--train.tokens=10240", "--train.checkpoint_every_tokens=4096")

JOINED = "--data.mode=concatenated"
FAR = ("--weights.by=evidence", "--weights.keep=[[0,9],[20,40]]")
RUNS = {
    "plain": (),
    "document": (JOINED, "--mask.method=document"),
    "chunks": (JOINED, "--mask.method=document", "--mask.ids=running", "--mask.chunks=2"),
    "anchor": (JOINED, "--mask.method=anchor"),
    "pose": (JOINED, "--skip.method=pose", "--skip.target_len=200"),
    "context": ("--weights.by=context", "--weights.target.exponent=0.7"),
    "far": (*FAR, "--evidence.tokens=2"),
    "near": ("--weights.by=evidence", "--weights.keep=[[0,30]]", "--weights.control=near", "--weights.fraction=0.5"),
    "random": (*FAR, "--weights.control=random"),
    "kind": ("--weights.by=evidence", "--weights.keep=[[0,30]]", "--weights.control=kind"),
    "ids": (JOINED, "--skip.method=pose", "--skip.target_len=200", *FAR, "--weights.distance=ids"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Train every run of RUNS, probed once."""
    place = tmp_path_factory.mktemp("demand")
    for name, words in RUNS.items():
        train(place, name, *SHORT, *words)
    return place


def packs_of(place, name):
    """Read the packs of a run anew: two of 512 tokens in each of its 10 steps."""
    experiment = load(*settings_of(place, name), *SHORT, *RUNS[name])
    data = PackedData(experiment)
    data.setup("fit")
    streams = [data.stream(j) for j in range(data.n_streams)]
    return experiment, list(itertools.islice(map(next, itertools.cycle(streams)), 20))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_counts_what_a_search_by_definition_finds(place, name):
    experiment, packs = packs_of(place, name)
    n = experiment.evidence.tokens
    expected = np.zeros(experiment.reach)
    for pack in packs:
        found = brute.demand(pack.tokens, pack.targets, pack.lengths, lambda x, p: brute.repeat(x, p, n))
        expected[[*found]] += [*found.values()]
    run = lab.open_run(place / "runs" / name)
    assert run.counts().g_unweighted.tolist() == expected.tolist()
    assert expected.sum() > 500
    if name in ("far", "near", "random", "kind", "ids", "context"):
        assert run.g().tolist() != expected.tolist()
    else:
        assert run.g().tolist() == expected.tolist()
        last = records(run.path)[-1]
        assert last["g_from_0.5L"] == expected[experiment.reach // 2 :].sum()


def test_the_loss_goes_where_the_weights_say(place):
    g, before = (getattr(lab.open_run(place / "runs" / "far").counts(), name) for name in ("g", "g_unweighted"))
    distances = np.arange(len(g))
    kept = (distances <= 9) | ((distances >= 20) & (distances <= 40))
    assert g.tolist() == np.where(kept, before, 0).tolist()
    assert before[~kept].sum() > 20
    near = lab.open_run(place / "runs" / "near").counts()
    lost = near.g_unweighted - near.g
    assert lost[:31].sum() == lost.sum()
    outside = near.g_unweighted[31:].sum()
    assert abs(lost.sum() - outside / 2) < 2 * np.sqrt(outside), "as many as half of those outside"
    with (
        np.load(place / "runs" / "random" / "counts.npz") as counts,
        np.load(place / "runs" / "plain" / "counts.npz") as whole,
    ):
        assert (counts["f"] == whole["f"]).all()
        assert whole["supervised_f"][0] - counts["supervised_f"][0] == before_of(place, "random", ~kept)


def test_demand_by_ids_is_what_a_search_by_definition_finds(place):
    for name in ("pose", "ids"):
        _, packs = packs_of(place, name)
        expected = np.zeros(200)
        for pack in packs:
            laid = pack.tokens, pack.targets, pack.lengths, lambda x, p: brute.repeat(x, p, 3)
            found = brute.demand(*laid, ids=pack.position_ids)
            expected[[*found]] += [*found.values()]
        counts = lab.open_run(place / "runs" / name).counts()
        if name == "ids":
            assert expected[10:20].sum() > 100
            expected[10:20] = expected[41:] = 0
        assert counts.g_by_ids.tolist() == expected.tolist()
        assert counts.g_by_ids.tolist() != counts.g.tolist()
        assert counts.g_from(41) == expected[41:].sum(), "the demand is read in ids where these have gaps"
    assert lab.open_run(place / "runs" / "plain").counts().g_by_ids is None


def test_a_control_of_the_same_kind_takes_as_many_answers(place):
    """Answers are read from the text, and distances found by definition."""
    _, packs = packs_of(place, "kind")
    tokenizer = load_tokenizer(place / "runs" / "kind")
    digit = {number for word, number in tokenizer.get_vocab().items() if word.isdigit()}
    total = 0
    for pack in packs:
        far, lost, begin = [], [], 0
        near = {True: 0, False: 0}
        for length, (sequence, scored) in zip(pack.lengths, brute.runs_of(pack.tokens, pack.targets, pack.lengths)):
            text = [tokenizer.decode([*sequence[:k]]) for k in range(len(sequence))]
            for k in np.flatnonzero(scored).tolist():
                distance = brute.repeat(sequence, k, 3)
                answers = sequence[k] in digit and re.search(r"numbers are[0-9, and]*$", text[k]) is not None
                if distance > 30:
                    far.append(answers)
                elif distance:
                    near[answers] += 1
                if not pack.weights[begin + k - 1]:
                    lost.append(answers)
                    assert 1 <= distance <= 30
            begin += length
        asked = min(sum(far), near[True])
        assert sum(lost) == asked
        assert len(lost) == asked + min(len(far) - asked, near[False])
        total += asked
    assert total > 20


def before_of(place, name, outside):
    return lab.open_run(place / "runs" / name).counts().g_unweighted[outside].sum()


def test_weights_by_context_enter_the_demand(place):
    _, packs = packs_of(place, "context")
    with np.load(place / "runs" / "context" / "counts.npz") as counts:
        weights, g = counts["weights"], counts["g"]
    expected = np.zeros(len(g))
    for pack in packs:
        for sequence, scored in brute.runs_of(pack.tokens, pack.targets, pack.lengths):
            for p in range(1, len(scored)):
                if scored[p] and (d := brute.repeat(sequence, p, 3)):
                    expected[d] += weights[p - 1]  # the target at place p sees p - 1 tokens before the one it follows
    np.testing.assert_allclose(g, expected, rtol=0, atol=UNIT * expected.sum())


@pytest.mark.parametrize("name", ["anchor", "near", "context"])
def test_a_resumed_run_counts_the_same(place, name):
    whole = place / "runs" / name
    begun = cut_after(whole, place / "runs" / f"begun_{name}", n=-1)
    train(place, begun.name, *SHORT, *RUNS[name], resume=True)
    assert_same_run(whole, begun)
