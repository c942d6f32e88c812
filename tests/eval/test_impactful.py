"""Marking, counting and taking, one number at a time."""

import numpy as np
import pandas as pd
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from eval.engine.impactful import choose, mark, token_texts


def n_of(top, n):
    """Round a share of n to the nearest whole number, halves up, at least one."""
    return min(n, max(1, int(top * n + 0.5)))


def marked_by_hand(changes, scored, top):
    """Sort each position's windows, the largest change first and equal ones in order."""
    out = np.zeros(changes.shape, dtype=bool)
    for place in range(changes.shape[1]):
        windows = [w for w in range(len(changes)) if scored[w, place]]
        windows.sort(key=lambda w: (-changes[w, place], w))
        for w in windows[: n_of(top, len(windows)) if windows else 0]:
            out[w, place] = True
    return out


@pytest.mark.parametrize("top", [0.01, 0.2, 0.29, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_marks_by_hand(top, seed):
    generator = np.random.default_rng(seed)
    n_windows, length = int(generator.integers(1, 30)), 12
    changes = generator.integers(0, 6, (n_windows, length)).astype(float)  # many are equal
    scored = generator.random((n_windows, length)) < 0.7
    scored[:, 3], scored[:, 4] = False, True
    found = mark(changes, scored, top)
    np.testing.assert_array_equal(found, marked_by_hand(changes, scored, top))
    assert not found[:, 3].any()
    assert found[:, 4].sum() == n_of(top, n_windows)


def taken_by_hand(occurrences, marked, coverage, min_count):
    """Take the label of the highest rate again and again, until enough of what is marked is held."""
    left = [k for k, n in enumerate(occurrences) if n >= min_count and marked[k]]
    taken, held = [], 0
    while left and held < coverage * sum(marked) - 1e-9:
        best = max(left, key=lambda k: (marked[k] / occurrences[k], marked[k], -k))
        left.remove(best)
        taken.append(best)
        held += marked[best]
    return taken


@pytest.mark.parametrize("min_count", [1, 6, 100])
@pytest.mark.parametrize("coverage", [0.01, 0.1, 0.5, 0.9, 1.0])
def test_what_is_taken_by_hand(coverage, min_count):
    for seed in range(10):
        generator = np.random.default_rng(seed)
        occurrences = generator.integers(1, 13, 12)
        marked = np.minimum(occurrences, generator.integers(0, 7, 12))
        order = sorted(range(12), key=lambda k: (-marked[k] / occurrences[k], -marked[k]))
        table = pd.DataFrame({"occurrences": occurrences, "marked": marked}).loc[order]
        assert choose(table, coverage, min_count) == taken_by_hand(occurrences, marked, coverage, min_count)


def test_a_share_is_exact_where_its_product_is_not():
    # 0.1 * 30 is 3.0000000000000004: three of thirty marked are a tenth all the same
    assert choose(pd.DataFrame({"occurrences": [3, 27, 27], "marked": [3, 14, 13]}), 0.1, 1) == [0]


def test_texts_put_together_are_the_text(bpe):
    texts = token_texts(bpe)
    assert len(texts) == bpe.get_vocab_size()
    for text in ("One of the magic numbers is 144.\n\nWhat ", " a b", "abc\td", "x"):
        ids = bpe.encode(text, add_special_tokens=False).ids
        assert "".join(texts[token] for token in ids) == text
    special = [token for token, text in enumerate(texts) if text is None]
    assert special == [bpe.token_to_id("<bos>"), bpe.token_to_id("<eos>")]
    assert texts[bpe.token_to_id("\u00c3")] == "\ufffd", "the first byte of a character"


def test_leading_spaces_show_where_a_decoder_drops_them_in_front():
    pieces = {"a": 0, "\u2581b": 1, "c": 2, "<s>": 3}
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>"])
    assert tokenizer.decode([1]) == "b"
    assert token_texts(tokenizer) == ["a", " b", "c", None]
