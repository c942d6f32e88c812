import numpy as np
from tokenizers import Tokenizer, decoders, models

from lab.data.selecting import sentence_ends, split_sentences


def test_sentences_by_hand():
    ends = np.array([True, False, False, True, False])  # ids 0 and 3 hold a mark
    for ids, lengths in (([1, 0, 0, 3, 2], [2, 1, 1, 1]), ([0, 2, 3], [1, 2]), ([], [])):
        split = split_sentences(np.array(ids, dtype=np.uint32), ends)
        assert (split.tolist(), split.dtype) == (lengths, np.int64)


def test_tokens_that_hold_a_mark_end_a_sentence():
    # in byte-level vocabularies a space is written \u0120 and a line break \u010a
    marked = [".", "\u0120?", '!"', "\u010a", "\u010a\u010a\u0120\u0120", ".com", "..."]
    others = ["It", "\u0120,;:", "\u2026", "3"]
    tokenizer = Tokenizer(models.BPE({token: at for at, token in enumerate(marked + others)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    ends = sentence_ends(tokenizer)
    assert ends.dtype == bool
    assert ends.tolist() == [True] * len(marked) + [False] * len(others)
