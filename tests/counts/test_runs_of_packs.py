"""Packed runs with any ids and with anchors, counted against a loop over all pairs of a token and one that it sees."""

import itertools

import numpy as np
import pytest

from lab.counts import PositionCounts, targets_by_context
from lab.skip import skip_positions

MAX_LEN = 64
SKIPS = ("none", "pose", "rpes", "longrecipe")


def loop_over_pairs(max_len, lengths, ids, anchors):
    """Count every pair of places of one row: a key of the query's own run that is not later, or its anchor."""
    run_of = [run for run, length in enumerate(lengths) for _ in range(length)]
    counted = [0] * max_len
    for q, k in itertools.product(range(len(run_of)), repeat=2):
        own = run_of[q] == run_of[k] and k <= q
        if own or (anchors is not None and anchors[run_of[q]] == k):
            counted[ids[q] - ids[k]] += 1
    return counted


def counted(max_len, lengths, ids, anchors=None):
    counts = PositionCounts(max_len)
    counts.add_runs(lengths, None if ids is None else np.array(ids), anchors)
    assert counts.frequency().dtype == np.int64
    return counts


def skipped(method, n_tokens, rng, below=MAX_LEN):
    """Draw the ids of a run."""
    if method == "none":
        return range(n_tokens)
    cuts = np.flatnonzero(rng.random(n_tokens - 1) < 0.3) + 1
    sentences = np.diff([0, *cuts, n_tokens]) if method == "longrecipe" else None
    return skip_positions(method, n_tokens, target_len=below, sentence_lengths=sentences, generator=rng).tolist()


@pytest.mark.parametrize("padding", [0, 5], ids=["full", "padding"])
@pytest.mark.parametrize("anchored", [False, True], ids=["alone", "anchors"])
@pytest.mark.parametrize("skip", SKIPS)
def test_random_packs_equal_a_loop_over_pairs(skip, anchored, padding):
    rng = np.random.default_rng(len(skip) + padding)
    for _ in range(6):
        lengths, ids, anchors = [], [], []
        for _ in range(3):
            window = len(ids)
            lengths += [1] * anchored
            anchors += [-1] * anchored
            ids += [0] * anchored
            for length in rng.integers(1, 12, 4).tolist():
                drawn = skipped(skip, length, rng, MAX_LEN - 1)
                shift = anchored + int(rng.integers(0, MAX_LEN - anchored - max(drawn)))
                ids += [place + shift for place in drawn]
                lengths.append(length)
                anchors.append(window if anchored and rng.random() < 0.8 else -1)
        anchors = tuple(anchors) if anchored else None
        counts = counted(MAX_LEN, lengths, ids + [0] * padding, anchors)
        assert counts.frequency().tolist() == loop_over_pairs(MAX_LEN, lengths, ids, anchors)
        assert counts.tokens == sum(lengths)


def test_unscored_targets_by_hand():
    # of contexts 0 1 2 | 0 1 the second and the last have no target, nor have two padding tokens
    scored = np.array([True, False, True, True, False, False, False])
    counts = PositionCounts(4)
    counts.add_targets(targets_by_context([3, 2], None, scored))
    assert counts.supervised.tolist() == [2, 0, 1, 0]
    assert counts.supervised_f().tolist() == [3, 1, 1, 0]
