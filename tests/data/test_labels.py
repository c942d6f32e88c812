"""The labels of the generated corpus: documents worked by hand, and stored labels in runs."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from lab.core.errors import DataError
from lab.data import sidecars
from lab.data.config import Synthetic
from lab.data.preparation import shard_folder
from lab.data.segments import index_segments
from lab.data.shards import TokenStore
from lab.data.sidecars import label_tokens, open_sidecar, sidecar_path
from lab.data.tokenizer import load_tokenizer
from lab.evidence.methods import Asked
from tests.data.stores import make_store, numbered_documents, stream_over
from tests.refusals import refused

LENGTHS = {"median_tokens": 70, "log_std": 0.3, "section_tokens": 60}
SMALL = Synthetic(words=8, digits=2, quote_prob=0.4, number_prob=0.2, repeat_prob=0.5, **LENGTHS)
# "bilep 35 pemop fuluf bilep" is repeated whole and then begun again; each copies the latest.
TEXT = """One of the magic numbers is 16. bilep 35 pemop fuluf bilep bilep 35 pemop fuluf bilep bilep 35.

What are the magic numbers mentioned in the provided text? The numbers are 16.

One of the magic numbers is 82. zegat libid fuluf 31. sukag 34 47 libid zegat libid fuluf.

What are the magic numbers mentioned in the provided text? The numbers are 82."""


def test_copies_worked_by_hand():
    assert SMALL.document(49) == TEXT
    found = [*SMALL.copies(49)]
    words = "bilep 35 pemop fuluf bilep bilep 35 16 zegat libid fuluf 82"
    assert [TEXT[begin:end].strip() for begin, end, _ in found] == words.split()
    assert [TEXT[begin:end] for begin, end, _ in SMALL.copies(49, answers=True)] == ["16", "82"]
    for begin, end, earlier in found:  # a copy repeats its word, the first of a document without a space before it
        assert TEXT[:earlier].endswith(TEXT[begin:end].strip())
        assert "\n\n" not in TEXT[earlier:begin].replace("\n\nWhat", "")
    assert [end - earlier for _, end, earlier in found[:7]] == [27] * 7, "bilep 35 pemop fuluf bilep and its spaces"


@pytest.mark.parametrize("mode", ["natural", "concatenated"])
@pytest.mark.parametrize("window", [7, 40])
def test_a_run_has_the_labels_that_lie_within_it(tmp_path, mode, window):
    documents = numbered_documents([9, 30, 1, 17, 25, 40])  # token t of all is t + 1
    store = make_store(tmp_path, [documents[:4], documents[4:]])
    labels = np.random.default_rng(1).integers(0, 12, 122)
    for shard, own in zip(store.shards, (labels[:57], labels[57:]), strict=True):
        sidecars.save(sidecar_path(shard, "asked"), own)
    numbers = {"asked": open_sidecar(store, "asked", "evidence.method")}
    settings = {"pack_tokens": 64, "sidecars": numbers, "evidence": Asked(), "look_ahead": 8}
    stream = stream_over(store, index_segments(store, mode, window), **settings)
    seen, kept = 0, 0
    for pack in itertools.islice(stream, 20):
        indices = np.concatenate([np.arange(length) for length in pack.lengths])
        for index, target, distance in zip(indices, pack.targets, pack.distances, strict=False):
            if target >= 0:
                label = labels[target - 1]
                assert distance == (label if label <= index + 1 else 0)
                seen, kept = seen + 1, kept + (distance > 0)
    assert 100 < kept < seen


def test_other_documents_than_the_generators_are_refused(prepared):
    (shard,) = TokenStore.open(shard_folder(prepared), "train").shards
    other = replace(prepared, corpus=replace(prepared.corpus, digits=4))
    with refused(f"{shard.folder}: document ", error=DataError):
        label_tokens(shard, other, load_tokenizer(shard.folder.parent))
