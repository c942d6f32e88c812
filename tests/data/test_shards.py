import itertools

import numpy as np
import pytest

from lab.data.shards import TokenShardWriter, TokenStore
from tests.data.stores import drawn_lengths, make_store, numbered_documents

LENGTHS = drawn_lengths(8, 23, 7)


@pytest.fixture
def store(tmp_path):
    """Documents over four shards, the third of which holds no training documents."""
    documents = numbered_documents(LENGTHS)
    make_store(tmp_path, [documents[:1], documents[1:14]])
    writer = TokenShardWriter(tmp_path / ".task-00002.tmp", "<u2")
    writer.add("held_out", [1, 2], "made")
    writer.close(tmp_path / "task-00002")
    writer = TokenShardWriter(tmp_path / ".task-00003.tmp", "<u2")
    for document in documents[14:]:
        writer.add("train", document, "made")
    writer.close(tmp_path / "task-00003")
    return TokenStore.open(tmp_path, "train")


def test_documents_of_every_range_are_numbered_from_its_first(store):
    owners = [number for number, length in enumerate(LENGTHS) for _ in range(length)]
    assert store.n_tokens == len(owners)
    for start, stop in itertools.combinations_with_replacement(range(len(owners) + 1), 2):
        numbers = store.document_numbers(start, stop - start)
        assert numbers.dtype == np.int64
        assert numbers.tolist() == [owner - owners[start] for owner in owners[start:stop]], (start, stop)
