"""Related-document order: against a chain by definition, on topics that are known, and as derived shards."""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from lab.config import Experiment, RunConfig
from lab.data import related
from lab.data.config import Bpe, Upsample
from lab.data.preparation import is_prepared, prepare, shard_folder
from lab.data.related import N_BUCKETS, SCALE, Similarity, bucket_counts, bucket_weights, chain, halved, related_order
from lab.data.segments import index_segments
from lab.data.shards import ShardWriter, TokenStore
from lab.errors import ConfigError
from lab.masks import Anchor, Document
from lab.model.config import DecoderConfig
from tests.data.slim import documents
from tests.data.stores import folder_bytes, make_store

VOCAB = 60_000


def topical(seed, n=120, topics=6, length=60):
    """Documents of words drawn from their topic and from words of all; returns them and their topics."""
    generator = np.random.default_rng(seed)
    words = generator.permutation(VOCAB)[: 40 * (topics + 1)].reshape(topics + 1, 40)
    kinds = generator.integers(topics, size=n).tolist()
    drawn = [
        np.where(generator.random(length) < 0.5, words[kind][generator.integers(40, size=length)], -1) for kind in kinds
    ]
    common = [words[-1][generator.integers(40, size=length)] for _ in kinds]
    return [np.where(own >= 0, own, rest).tolist() for own, rest in zip(drawn, common)], kinds


def shard_of(folder, documents, sources=None):
    """Write one shard and open its training split."""
    writer = ShardWriter(folder / ".writing", "<u2")
    for number, ids in enumerate(documents):
        writer.add("train", ids, "made" if sources is None else sources[number])
    writer.close(folder / "task-00000")
    (shard,) = TokenStore.open(folder, "train").shards
    return shard


def by_definition(documents):
    """Give all similarities from the equation, in plain Python."""
    counts = [Counter((token * 2654435761 % 2**32) // 2**22 for token in ids) for ids in documents]
    having = Counter(bucket for one in counts for bucket in one)
    idf = {bucket: math.log(1 + len(documents) / n) for bucket, n in having.items()}
    rows = [{b: math.log(1 + c) * idf[b] for b, c in one.items()} for one in counts]
    norms = [math.sqrt(sum(v * v for v in row.values())) for row in rows]
    return [
        [sum(v * other.get(b, 0) for b, v in row.items()) / (p * q) for other, q in zip(rows, norms)]
        for row, p in zip(rows, norms)
    ]


def mean_of_neighbours(similarity, order):
    return float(np.mean([similarity[a][b] for a, b in zip(order, order[1:])]))


def ones(documents):
    return np.ones(len(documents), dtype=np.int64)


def test_the_order_is_the_greedy_chain_of_the_definition(tmp_path):
    made, _ = topical(0)
    similarity = np.array(by_definition(made))
    order, before, after = related_order(shard_of(tmp_path, made), ones(made))
    left, expected = set(range(1, len(made))), [0]
    while left:
        row = similarity[expected[-1]]
        best = max(row[k] for k in left)
        near = [k for k in left if row[k] > best - 2e-3]  # vectors are rounded to 1 / SCALE
        expected.append(next(k for k in [order[len(expected)]] if k in near))
        left.remove(expected[-1])
    assert order.tolist() == expected
    assert before.pairs == after.pairs == len(made) - 1
    assert before.total / before.pairs == pytest.approx(mean_of_neighbours(similarity, range(len(made))), abs=1e-3)
    assert after.total / after.pairs == pytest.approx(mean_of_neighbours(similarity, order), abs=1e-3)


def test_neighbours_share_their_topic_far_more_often_than_by_chance(tmp_path):
    made, kinds = topical(1)
    order, before, after = related_order(shard_of(tmp_path, made), ones(made))
    same = np.mean([kinds[a] == kinds[b] for a, b in zip(order, order[1:])])
    assert same > 0.9, "6 topics: 0.17 by chance"
    assert after.total / after.pairs > before.total / before.pairs + 0.1
    similarity = by_definition(made)
    generator = np.random.default_rng(0)
    by_chance = [mean_of_neighbours(similarity, generator.permutation(len(made))) for _ in range(20)]
    assert mean_of_neighbours(similarity, order) > max(by_chance) + 0.1


def test_chain_worked_by_hand():
    # from 0: 2 (3 > 1 > 0), from 2: 3 (2 > 0), then 1
    vectors = np.array([[1, 0, 0], [0, 0, 2], [3, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=np.float32)
    # products with 0: 0 3 1 0; with 2: -, 0, -, 3, 1; with 3: 1 -> 2, 4 -> 0; with 1: 4
    assert chain(vectors).tolist() == [0, 2, 3, 1, 4]
    assert chain(vectors[:1]).tolist() == [0]
    assert chain(np.ones((4, 2), dtype=np.float32)).tolist() == [0, 1, 2, 3], "the first of equals"


def test_buckets_and_their_weights_by_hand(tmp_path):
    # 2654435761 = 0x9E3779B1, its first 10 bits 1001111000 = 632; twice it mod 2^32 = 0x3C6EF362: 0011110001 = 241
    counts = bucket_counts(np.array([0, 1, 1, 2], dtype=np.uint16))
    assert {b: n for b, n in enumerate(counts.tolist()) if n} == {0: 1, 632: 2, 241: 1}
    assert (bucket_counts(np.array([70_000], dtype=np.uint32)) > 0).sum() == 1
    weights = bucket_weights(shard_of(tmp_path, [[0, 1, 1], [1, 2], [1], [2, 2]]))
    assert weights[[0, 632, 241]] == pytest.approx([math.log(1 + 4), math.log(1 + 4 / 3), math.log(1 + 4 / 2)])


def test_similarities_are_exact_in_float32():
    rows = np.zeros((2, N_BUCKETS), dtype=np.float32)
    rows[:, :4] = SCALE / 2  # a unit vector
    assert float((rows @ rows.T).max()) == SCALE**2 < 2**24
    total = Similarity()
    total.add(rows)
    assert (total.total, total.pairs) == (1.0, 1)
    total.add(rows[:1])
    assert (total.total, total.pairs) == (1.0, 1)


def test_sources_are_not_crossed_inside_their_blocks(tmp_path):
    made, _ = topical(2, n=90)
    sources = [f"kind{n % 3}" for n in range(90)]
    order, _, _ = related_order(shard_of(tmp_path, made, sources), ones(made))
    assert sorted(order.tolist()) == list(range(90))
    laid = [sources[k] for k in order]
    assert sum(a != b for a, b in zip(laid, laid[1:])) == 2, "three sources, one block each"


def test_axes_are_those_of_a_singular_value_decomposition():
    generator = np.random.default_rng(0)
    strong = generator.normal(size=(60, 3)) * [900, 500, 200] @ generator.normal(size=(3, N_BUCKETS)) / 32
    mean = generator.uniform(0, 3000, N_BUCKETS)  # a direction that all share is none along which they vary
    seen = np.rint(strong + mean + generator.normal(size=strong.shape)).astype(np.float32)
    axes = related.principal_axes(seen)
    assert (axes == np.rint(axes)).all()
    assert (np.abs(axes).max(0) == axes.max(0)).all()
    _, _, expected = np.linalg.svd(seen - seen.mean(0))
    for axis, wanted in zip(axes.T[::-1], expected[:3]):
        assert abs(float(axis @ wanted)) == pytest.approx(related.GRID, rel=2e-3)
        assert np.linalg.norm(axis) == pytest.approx(related.GRID, rel=2e-3)


def test_halving_goes_along_the_widest_axis_at_the_median(monkeypatch):
    monkeypatch.setattr(related, "MOST", 2)
    places = np.array([[0, 9], [1, -9], [0, 8], [1, -8], [0, 7]], dtype=np.float32)
    # by the second axis: 1, 3 | 4, 2, 0; then of 0, 2, 4 again by the second: 4 | 0, 2
    assert [block.tolist() for block in halved(np.arange(5), places)] == [[1, 3], [4], [0, 2]]


@pytest.mark.parametrize("most", [7, 16, 33])
def test_halving_makes_blocks_of_related_documents(tmp_path, most, monkeypatch):
    monkeypatch.setattr(related, "MOST", most)
    made, kinds = topical(3, n=240, topics=4)
    shard = shard_of(tmp_path, made)
    order, before, after = related_order(shard, ones(made))
    assert sorted(order.tolist()) == list(range(240))
    vectors = related.vectors(shard, np.arange(240), bucket_weights(shard))
    blocks = halved(np.arange(240), vectors @ related.principal_axes(vectors))
    assert sorted(np.concatenate(blocks).tolist()) == list(range(240))
    assert max(map(len, blocks)) <= most
    assert min(map(len, blocks)) >= most // 2 - 1
    purity = np.mean([max(Counter(kinds[k] for k in block).values()) / len(block) for block in blocks])
    dealt = [np.arange(240)[k :: len(blocks)] for k in range(len(blocks))]
    by_chance = np.mean([max(Counter(kinds[k] for k in block).values()) / len(block) for block in dealt])
    assert purity > by_chance + 0.25
    assert before.pairs == 240 - math.ceil(240 / most)
    assert after.pairs == 240 - len(blocks)


@pytest.mark.parametrize("seed", range(3))
def test_copies_stand_apart(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(related, "MOST", 20)
    made, _ = topical(seed, n=80)
    generator = np.random.default_rng(seed)
    copies = generator.choice([0, 1, 1, 3, 6], 80)
    sources = [f"kind{n % 2}" for n in range(80)]
    order, _, after = related_order(shard_of(tmp_path, made, sources), copies)
    assert (np.bincount(order, minlength=80) == copies).all()
    assert (order[1:] != order[:-1]).all()
    assert after.total > 0


def test_a_lone_document_with_many_copies_is_put_between_the_others(tmp_path):
    made, _ = topical(4, n=30)
    copies = np.array([1] * 29 + [9])
    order, _, _ = related_order(shard_of(tmp_path, made), copies)
    assert (np.bincount(order) == copies).all()
    assert (order[1:] != order[:-1]).all()


def test_blocks_of_every_source_and_round_are_spread_evenly(tmp_path, monkeypatch):
    monkeypatch.setattr(related, "MOST", 5)
    made, _ = topical(7, n=40)
    sources = ["copied"] * 10 + ["plain"] * 30
    order, _, _ = related_order(shard_of(tmp_path, made, sources), np.array([3] * 10 + [1] * 30))
    laid = "".join("c" if k < 10 else "p" for k in order)
    # 2 blocks of 5 in each of 3 rounds stand at 0, 1/6 ... 5/6, 8 blocks of 3 or 4 at 0, 1/8 ... 7/8
    blocks = sorted([(k / 6, 0, "ccccc") for k in range(6)] + [(k / 8, 1, "p" * (3 + k % 2)) for k in range(8)])
    assert Counter(laid[:20])["c"] == Counter("".join(block for *_, block in blocks)[:20])["c"] == 10
    assert [len(part) for part in laid.replace("p", " ").split()] == [len(b) for _, kind, b in blocks if kind == 0]


def test_the_order_does_not_depend_on_what_other_documents_are_copied(tmp_path):
    made, _ = topical(5, n=40)
    shard = shard_of(tmp_path, made)
    one, _, _ = related_order(shard, ones(made))
    two, _, _ = related_order(shard, 2 * ones(made))
    assert two.tolist() == [*one.tolist(), *one.tolist()]


# as shards


@pytest.fixture
def config(config):
    return replace(config, upsample=None, mode="concatenated", order="related")


def test_the_derived_shards_hold_the_same_documents_in_another_order(config):
    done = prepare(config, progress=False)
    base, derived = documents(config.base), documents(config)
    for theirs, mine in zip(base, derived, strict=True):
        assert sorted(theirs) == sorted(mine)
        assert theirs != mine
    assert documents(config, "held_out") == documents(config.base, "held_out")
    found = json.loads((done.folder / "neighbours.json").read_text())
    assert found["before"] < found["after"] < 1
    assert not (done.folder / "upsampling.json").exists()
    assert is_prepared(config)


def test_the_result_does_not_depend_on_the_workers(config, tmp_path):
    config = replace(config, upsample=Upsample(longer_than=100, share=0.9))
    prepare(config, progress=False)
    other = replace(config, folder=str(tmp_path / "by_two"))
    prepare(other, workers=2, progress=False)
    assert folder_bytes(shard_folder(other)) == folder_bytes(shard_folder(config))


def test_upsampled_and_related_holds_the_copies_of_the_upsampled(config):
    both = replace(config, upsample=Upsample(longer_than=100, share=0.9))
    upsampled = replace(both, order="corpus")
    prepare(both, progress=False)
    prepare(upsampled, progress=False)
    assert [sorted(shard) for shard in documents(both)] == [sorted(shard) for shard in documents(upsampled)]
    records = [(shard_folder(c) / "upsampling.json").read_bytes() for c in (both, upsampled)]
    assert records[0] == records[1]
    parts = [json.loads(path.read_text()) for path in shard_folder(both).glob("task-*/neighbours.json")]
    found = json.loads((shard_folder(both) / "neighbours.json").read_text())
    for when, mean in found.items():
        assert mean == pytest.approx(sum(p[when]["total"] for p in parts) / sum(p[when]["pairs"] for p in parts))
    for shard in documents(both):
        assert max(Counter(shard).values()) > 1
        assert all(one != other for one, other in zip(shard, shard[1:]))


def test_topics_stand_together_in_windows(tmp_path):
    made, kinds = topical(6, n=200, length=20)
    topic_of = {tuple(ids): kind for ids, kind in zip(made, kinds)}
    shard = shard_of(tmp_path / "base", made)
    order, _, _ = related_order(shard, ones(made))
    store = make_store(tmp_path / "laid", [[made[k] for k in order]])
    segments = index_segments(store, "concatenated", 100)
    shares = []
    for number in range(segments.n):
        window = store.read(segments[number].start, 100).reshape(5, 20).tolist()
        counts = Counter(topic_of[tuple(ids)] for ids in window)
        shares.append(max(counts.values()) / 5)
    assert np.mean(shares) > 0.8


def test_an_order_that_would_be_ignored_is_refused(config):
    with pytest.raises(ConfigError, match="^order=related: would be ignored, in mode natural no segment holds two"):
        replace(config, mode="natural")
    model = DecoderConfig(d_model=8, n_layers=1, n_heads=1, n_kv_heads=1, d_ff=8, vocab_size=300, tie_embeddings=True)
    data = replace(config, tokenizer=Bpe(vocab_size=300))
    for mask in (Document(), Anchor()):
        with pytest.raises(ConfigError, match=f"data.order=related: would be ignored, mask.method={mask.method} "):
            Experiment(run=RunConfig(name="x"), model=model, data=data, mask=mask)
