"""Shaped data: draws by class, blocks cut as planned, ids; counts against pairs counted one by one; costs by hand."""

import itertools
from collections import Counter

import numpy as np
import pytest
from lab.data.shaping_cost import cost_of, cut_share
from lab.shape.components import length_classes

from lab.counts import PositionCounts
from lab.data.config import DataConfig
from lab.data.segments import NaturalSegments
from lab.data.shaped import CYCLE, PACK_CYCLE, ClassSegments, natural_counts, shape_corpus
from lab.errors import DataError
from lab.shape.config import Choose, Flat, Gaps, Pack, Power, ShapeConfig
from lab.shape.profiles import binned, share
from tests.data.stores import make_store, numbered_documents, stream_over

WINDOW, SEED = 24, 5


def documents_of(seed, n, shards):
    lengths = (np.random.default_rng(seed).lognormal(2.3, 1.0, n).astype(int) + 1).tolist()
    documents = numbered_documents(lengths)
    return [documents[i::shards] for i in range(shards)]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("store"), documents_of(0, 900, 3), vocab_size=1_000_000)


def shaped_by(store, strategy, target, window=WINDOW, **settings):
    config = DataConfig(window=window, mode="natural" if isinstance(strategy, Choose) else "concatenated")
    return shape_corpus(ShapeConfig(strategy=strategy, target=target, **settings), config, store)


def cut_documents(store, window):
    """Cut the documents one by one: (start, length) of every segment."""
    out, place = [], 0
    for document in store.documents():
        out += [(place + a, min(window, len(document) - a)) for a in range(0, len(document), window)]
        place += len(document)
    return out


def test_natural_counts_are_those_of_documents_cut(store):
    lengths = [n for _, n in cut_documents(store, WINDOW)]
    assert natural_counts(store, WINDOW).tolist() == np.bincount(lengths, minlength=WINDOW + 1).tolist()


def test_a_cycle_draws_every_class_as_planned_and_passes_without_repeats(store):
    segments = shaped_by(store, Choose(), Power(exponent=0.8)).segments
    assert isinstance(segments, ClassSegments)
    edges = length_classes(WINDOW)
    every = cut_documents(store, WINDOW)
    of_class = [Counter(s for s in every if low <= s[1] < high) for low, high in zip(edges, edges[1:])]
    drawn = [segments.draw(sample, SEED) for sample in range(3 * CYCLE)]
    for cycle in range(3):
        kinds = [np.searchsorted(edges, s.length, side="right") - 1 for s in drawn[cycle * CYCLE : (cycle + 1) * CYCLE]]
        assert np.bincount(kinds, minlength=len(segments.draws)).tolist() == segments.draws.tolist()
    for kind, whole in enumerate(of_class):
        seen = Counter((s.start, s.length) for s in drawn if edges[kind] <= s.length < edges[kind + 1])
        assert seen.keys() <= whole.keys()
        assert not seen or max(seen.values()) - min(seen[s] for s in whole) <= 1  # passes follow one another


def test_draws_know_where_documents_go_on(store):
    natural = NaturalSegments(store, WINDOW)
    continues = {natural[i].start: natural[i].continues for i in range(natural.n)}
    segments = shaped_by(store, Choose(), Power(exponent=0.8)).segments
    drawn = [segments.draw(sample, SEED) for sample in range(500)]
    assert all(continues[s.start] == s.continues for s in drawn)
    assert {s.continues for s in drawn} == {True, False}


def test_draws_depend_on_the_seed_and_not_on_shards(store, tmp_path):
    plans = [shaped_by(store, Choose(), Power(exponent=0.8)).segments for _ in range(2)]  # the second reads the cache
    first, again, other = ([s.draw(i, seed) for i in range(300)] for s, seed in zip([*plans, plans[0]], (1, 1, 2)))
    assert first == again
    assert first != other


def test_what_a_rare_class_gives_depends_on_the_seed(store):
    draws = np.zeros(len(length_classes(WINDOW)) - 1, dtype=np.int64)
    draws[[0, -1]] = CYCLE - 3, 3  # three of all full segments
    segments = ClassSegments(store, WINDOW, draws)
    drawn = [{s.start for s in (segments.draw(i, seed) for i in range(CYCLE)) if s.length == WINDOW} for seed in (1, 2)]
    assert len(drawn[0]) == len(drawn[1]) == 3
    assert drawn[0] != drawn[1]


def test_blocks_are_cut_as_planned_and_read_the_corpus_once(store):
    shaped = shaped_by(store, Pack(), Power(exponent=0.8))
    n = shaped.segments.n
    every = [shaped.segments[i] for i in range(n)]
    assert [s.start for s in every] == np.cumsum([0, *(s.length for s in every)])[:-1].tolist()
    assert n % PACK_CYCLE == 0
    lengths = Counter(s.length for s in every[:PACK_CYCLE])
    assert sorted(lengths.values()) == sorted(d for d in shaped.plan.draws.tolist() if d)
    drawn = [shaped.segments.draw(i, SEED).start for i in range(n)]
    assert sorted(drawn) == [s.start for s in every]


def test_a_corpus_smaller_than_a_block_is_refused(tmp_path):
    small = make_store(tmp_path, [numbered_documents([30, 40, 50])])
    with pytest.raises(DataError, match=r"^shape\.strategy\.method=pack: needs \d+ tokens at data\.window=24, the spl"):
        shaped_by(small, Pack(), Power(exponent=0.9))


@pytest.mark.parametrize(
    ("strategy", "target", "tolerance"),
    [
        (Choose(), Power(exponent=0.8), 0.02),
        (Choose(), Power(exponent=1.4), 0.02),
        (Pack(), Power(exponent=0.8), 0.02),
        (Gaps(target_len=80), Power(exponent=0.8), 0.03),
    ],
    ids=["choose", "choose_shorter", "pack", "skip"],
)
def test_packs_show_the_profile_that_was_planned(store, strategy, target, tolerance):
    """Pairs of the packs' own runs and ids, counted by their dense matrix, against the plan."""
    shaped = shaped_by(store, strategy, target)
    settings = {"pack_tokens": 8 * WINDOW, "seed": SEED, "look_ahead": 8, "skip": shaped.skip}
    stream = stream_over(store, shaped.segments, **settings)
    reach = int(shaped.plan.edges[-1])
    found, counts = np.zeros(reach, dtype=np.int64), PositionCounts(reach)
    for pack in itertools.islice(stream, 500):
        begin = 0
        for n in pack.lengths:
            own = np.arange(n) if pack.position_ids is None else pack.position_ids[begin : begin + n]
            distances = own[:, None] - own
            found += np.bincount(distances[np.tril_indices(n)], minlength=reach)
            counts.add_positions(own, np.zeros(n, np.int64), mask="causal")
            begin += n
    np.testing.assert_array_equal(counts.frequency(), found)
    profile = share(binned(found.astype(float), shaped.plan.edges))
    assert np.abs(profile - shaped.plan.reached).sum() / 2 < tolerance
    assert np.abs(profile - shaped.plan.natural).sum() / 2 > 2 * tolerance


def test_costs_by_hand(tmp_path):
    """Documents of 4, 2, 2 and 2 tokens, of which a flat target draws the first alone."""
    small = make_store(tmp_path, [numbered_documents([4, 2, 2, 2])])
    # flat up to 3 is come nearest to by full segments alone: profile 3/6 2/6 1/6, total variation 1/6
    shaped = shaped_by(small, Choose(), Flat(), window=4, tolerance=0.2)
    assert shaped.plan.distance == pytest.approx(1 / 6, abs=1e-3)
    cost = cost_of(shaped, small, tokens=12)
    assert cost.repeated_frac == pytest.approx(8 / 12)  # three draws of the one segment of 4
    assert cost.unread_frac == pytest.approx(6 / 10)
    assert cost.cut_frac == 0
    assert cost.pairs_per_token == pytest.approx(6 / 4)
    assert cost.natural_pairs_per_token == pytest.approx((6 + 3) / 10)


def test_the_share_of_documents_cut(tmp_path):
    small = make_store(tmp_path, [numbered_documents([4, 9]), numbered_documents([3, 8, 2])])
    shaped = shaped_by(small, Gaps(target_len=9), Power(exponent=1.0), window=8, tolerance=0.9)
    # windows end at 8 and 16 and 24 of documents that end at 4, 13, 16, 24 and 26: only the second is cut
    assert cut_share(shaped.segments, small) == pytest.approx(1 / 4)
    natural = NaturalSegments(small, 8)  # the second, of 9 tokens, is cut once; all five are read
    assert cut_share(natural, small) == pytest.approx(1 / 5)
