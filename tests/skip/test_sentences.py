import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from lab.data.selecting import sentence_ends, split_sentences

ENDS = np.array([True, False, False, True, False])  # ids 0 and 3 hold a mark


@pytest.mark.parametrize(
    ("ids", "lengths"),
    [
        pytest.param([1, 2, 0, 4, 3, 1, 0], [3, 2, 2], id="every_sentence_marked"),
        pytest.param([1, 2, 0, 4], [3, 1], id="last_piece_without_a_mark"),
        pytest.param([1, 2, 4], [3], id="no_mark"),
        pytest.param([0, 1, 2], [1, 2], id="mark_first"),
        pytest.param([1, 0, 0, 3, 2], [2, 1, 1, 1], id="marks_in_a_row"),
        pytest.param([], [], id="nothing"),
    ],
)
def test_sentences_by_hand(ids, lengths):
    for given in (ids, np.array(ids, dtype=np.uint32)):
        split = split_sentences(given, ENDS)
        assert split.tolist() == lengths
        assert split.dtype == np.int64
    assert ENDS.tolist() == [True, False, False, True, False]


def test_tokens_that_hold_a_mark_end_a_sentence():
    # in byte-level vocabularies a space is written \u0120 and a line break \u010a
    marked = [".", "\u0120?", '!"', "\u010a", "\u010a\u010a\u0120\u0120", ".com", "..."]
    others = ["It", "\u0120,;:", "\u2026", "3"]
    tokenizer = Tokenizer(models.BPE({token: at for at, token in enumerate(marked + others)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    ends = sentence_ends(tokenizer)
    assert ends.dtype == bool
    assert ends.tolist() == [True] * len(marked) + [False] * len(others)
