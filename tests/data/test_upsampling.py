"""Upsampling of long documents: weights by hand, copies by brute force, and shards read back from their bytes."""

import itertools
import json
import math
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from lab.data.config import Conversations, DataConfig, Upsample
from lab.data.derivation import weigh
from lab.data.preparation import is_prepared, prepare, shard_folder
from lab.data.shards import TokenStore
from tests.data.slim import LONG, SHARE, TASKS, documents, slim, slim_corpus
from tests.data.stores import refused


@pytest.fixture
def config(tmp_path, tokenizer):
    """An upsampled corpus of SlimPajama's form."""
    slim_corpus(tmp_path / "corpus")
    return slim(tmp_path, tokenizer)


def test_weights_worked_by_hand():
    tokens = np.array([[600, 400], [900, 100], [500, 0], [0, 700], [200, 800]])
    # 1000 tokens, 750 wanted of 400: 1.875; 250 of 600: 0.41667. 1000 tokens, 750 of 100: 7.5; 250 of 900: 0.27778
    expected = [[250 / 600, 1.875], [250 / 900, 7.5], [1, 1], [1, 1], [1, 1]]
    np.testing.assert_allclose(weigh(tokens, Upsample(share=0.75)), expected, rtol=1e-12)
    scaled = weigh(tokens, Upsample(share=0.75, tokens=2100))  # half of 4,200
    np.testing.assert_allclose(scaled, np.array(expected) / 2, rtol=1e-12)


def test_every_copy_is_a_document_of_its_base_shard_as_often_as_the_weights_say(config):
    prepare(config, progress=False)
    base, derived = documents(config.base), documents(config)
    assert len(base) == len(derived) == TASKS
    before = Counter()  # tokens by source and by whether their document is long
    for source, ids in itertools.chain(*base):
        before[source, len(ids) > LONG] += len(ids)
    for (source, is_long), part in before.items():
        total = before[source, False] + before[source, True]
        keeps = before[source, True] in (0, total) or before[source, True] >= SHARE * total
        weight = 1 if keeps else (SHARE if is_long else 1 - SHARE) * total / part
        mine = [Counter(ids for s, ids in shard if s == source and (len(ids) > LONG) == is_long) for shard in derived]
        theirs = [Counter(ids for s, ids in shard if s == source and (len(ids) > LONG) == is_long) for shard in base]
        for got, had in zip(mine, theirs, strict=True):
            assert set(got) <= set(had)
            assert {got[ids] for ids in had} <= {math.floor(weight), math.ceil(weight)}
        n_copies, n_documents = (sum(sum(c.values()) for c in counters) for counters in (mine, theirs))
        assert abs(n_copies - weight * n_documents) < 1


def test_a_base_that_was_made_anew_is_noticed(config, tmp_path, tokenizer):
    prepare(config, progress=False)
    shutil.rmtree(shard_folder(config.base))
    shutil.rmtree(tmp_path / "corpus")
    slim_corpus(tmp_path / "corpus", seed=1)
    prepare(config.base, progress=False)
    assert not is_prepared(config)
    folder = shard_folder(config)
    with refused(f"{folder}: task-00000 and 2 "):
        prepare(config, progress=False)
    shutil.rmtree(folder)
    prepare(config, progress=False)
    assert is_prepared(config)


def test_scored_marks_are_carried_over(tmp_path, tokenizer, monkeypatch):
    generator, rows = np.random.default_rng(0), []
    for number in range(40):
        said = [" ".join(f"w{n}" for n in generator.integers(1, 500, size)) for size in (5, 3 + 4 * (number % 8))]
        rows.append({"conversations": [{"from": "human", "value": said[0]}, {"from": "gpt", "value": said[1]}]})
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    corpus = Conversations(path=str(tmp_path / "a.jsonl"))
    monkeypatch.setattr(Upsample, "longer_than", 30)
    upsample = Upsample(share=0.9)
    config = DataConfig(corpus=corpus, tokenizer=tokenizer, folder=str(tmp_path / "shards"), upsample=upsample)
    prepare(config, progress=False)
    marked = {}
    for one in (config.base, config):
        store = TokenStore.open(shard_folder(one), "train")
        parts = [(shard, shard.part(document)) for shard in store.shards for document in range(len(shard.ends))]
        marked[one.upsample] = [(tuple(shard.tokens[part]), tuple(shard.scored[part])) for shard, part in parts]
    assert set(marked[upsample]) < set(marked[None])
    assert any(any(scored) for _, scored in marked[upsample])
    assert len(marked[upsample]) != len(set(marked[upsample])), "some are copied"


@pytest.mark.parametrize(
    ("settings", "rule"),
    [({"share": 0.01}, "share=0.01: changes no source "), ({"tokens": 1}, "tokens=1: leaves no document")],
)
def test_settings_that_change_nothing_are_refused(config, settings, rule):
    wrong = replace(config, upsample=replace(config.upsample, **settings))
    with refused(f"data.upsample.{rule}"):
        prepare(wrong, progress=False)
    assert not shard_folder(wrong).exists()
