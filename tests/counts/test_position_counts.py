import itertools

import numpy as np
import pytest

from lab.core.errors import DataError
from lab.counts import PositionCounts, targets_by_context


def pair_loop(max_len, rows, mask):
    """Count every attended pair of every row, one at a time."""
    counted = [0] * max_len
    for ids, docs in rows:
        for q, k in itertools.product(range(len(ids)), repeat=2):
            if k > q or docs[q] < 0 or docs[k] < 0:
                continue
            if mask == "causal" or docs[k] == docs[q] or (mask == "anchor" and docs[k] == 0):
                counted[ids[q] - ids[k]] += 1
    return counted


def gapped_row(rng, lengths, largest_gap, running):
    """Draw documents of the given lengths with gaps in their ids; ids run on or start again in each."""
    ids, docs, at = [], [], 0
    for doc, length in enumerate(lengths):
        at = at + 1 if running else 0
        for _ in range(length):
            ids.append(at)
            docs.append(doc)
            at += int(rng.integers(1, largest_gap + 1))
    return ids, docs


def test_full_window_of_2048_holds_the_published_shares():
    # f(i) = 2048 - i. All pairs: 2048 * 2049 / 2 = 2,098,176. At i >= 1024 the terms are 1024 .. 1, sum
    # 1024 * 1025 / 2 = 524,800 (25.01%); at i >= 1536 they are 512 .. 1, sum 512 * 513 / 2 = 131,328 (6.26%).
    counts = PositionCounts(2048)
    counts.add_segments([2048])
    assert counts.frequency().dtype == np.int64
    assert counts.frequency().tolist() == list(range(2048, 0, -1))
    assert counts.share(1024, 2047) == 524_800 / 2_098_176
    assert counts.share(1536, 2047) == 131_328 / 2_098_176


@pytest.mark.parametrize("padding", [0, 3], ids=["no_padding", "padding"])
@pytest.mark.parametrize("largest_gap", [1, 2, 9], ids=lambda gap: f"gap_{gap}")
@pytest.mark.parametrize(
    ("mask", "running"), [("causal", True), ("document", True), ("document", False), ("anchor", True)]
)
def test_ids_equal_a_loop_over_pairs(mask, running, largest_gap, padding):
    rng = np.random.default_rng(largest_gap)
    rows = []
    for _ in range(3):
        ids, docs = gapped_row(rng, [2, 11, 1, 6], largest_gap, running)
        rows.append((ids + [0] * padding, docs + [-1] * padding))
    max_len = 256
    counts = PositionCounts(max_len)
    counts.add_positions([ids for ids, _ in rows], [docs for _, docs in rows], mask=mask)
    assert counts.frequency().tolist() == pair_loop(max_len, rows, mask)
    assert counts.tokens == 3 * 20
    alone = PositionCounts(max_len)
    for ids, docs in rows:
        alone.add_positions(ids, docs, mask=mask)
    assert counts == alone


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda c: PositionCounts(0), "max_len=0: must be >= 1"),
        (lambda c: c.add_segments([3, 9]), r"lengths=3\.\.9: must be in 0\.\.8"),
        (lambda c: c.add_positions([0], [0], mask="full"), "mask=full: unknown mask"),
        (lambda c: c.add_positions([0, 0], [0, 0]), "position_ids: must rise strictly"),
        (lambda c: c.add_positions([0, 1, 0], [0, 0, 1], mask="causal"), "must rise strictly"),
        (lambda c: c.add_positions([0, 8], [0, 0]), "distance 8 must be below max_len=8"),
        (lambda c: c.add_positions([0, 1], [1, 0], mask="anchor"), "document 0, the anchor"),
        (lambda c: c.add_positions([0, 1, 0], [0, 0, 1], mask="anchor"), "must not come before"),
        (lambda c: c.add_positions([0, 0], [0, 1], mask="anchor"), "position_ids"),  # a token on the anchor's id
        (lambda c: c.add_positions([0, 1, 2], [0, 0]), "position_ids|doc_ids"),
        (lambda c: c.add_targets(np.zeros(9, dtype=np.int64)), "context=8: must be below max_len=8"),
        (lambda c: c + PositionCounts(9), "max_len=9: must equal 8"),
    ],
)
def test_what_cannot_be_counted_is_refused(act, message):
    counts = PositionCounts(8)
    with pytest.raises(DataError, match=message):
        act(counts)


MAPS = {  # STRING with S = 3 and W = 1, by hand: i below 3, i - 2 from there on; and half the distance
    "shifted": lambda i: np.where(i < 3, i, i - 2).astype(float),
    "halved": lambda i: i / 2,
}


@pytest.mark.parametrize("lengths", [[5], [1, 7, 7, 3], [600, 2], [], [0, 4]], ids=str)
@pytest.mark.parametrize("name", MAPS)
def test_counts_under_a_map_equal_a_loop_over_pairs(lengths, name):
    counts = PositionCounts(600, lambda m, n: MAPS[name](m[:, None] - n[None, :]))
    counts.add_segments(lengths)
    expected = np.zeros(600, dtype=np.int64)
    for length in lengths:
        i = np.arange(length)
        np.add.at(expected, np.floor(MAPS[name](i)).astype(int), length - i)  # pairs at each distance
    assert (counts.frequency() == expected).all()
    assert counts.tokens == sum(lengths)
    assert ((counts + counts).frequency() == 2 * expected).all()


def test_unscored_targets_by_hand():
    # of contexts 0 1 2 | 0 1 the second and the last have no target, nor have two padding tokens
    scored = np.array([True, False, True, True, False, False, False])
    counts = PositionCounts(4)
    counts.add_targets(targets_by_context([3, 2], None, scored))
    assert counts.supervised.tolist() == [2, 0, 1, 0]
    assert counts.supervised_f().tolist() == [3, 1, 1, 0]
