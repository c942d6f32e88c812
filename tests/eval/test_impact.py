"""The analysis of impactful tokens through its command, against whole logits and sorted lists."""

import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from eval.engine.impactful import choose_labels, mark, token_texts
from eval.impact import main
from lab.data.packing import held_out_windows
from lab.data.preparation import shard_folder
from lab.data.shards import TokenStore
from lab.data.tokenizer import load_tokenizer
from lab.loading import open_model
from tests.opened import write_run

TOL = 1e-4  # of changes near 10: float32 products, a whole row of the head or all of them
WORDS = ["--windows=12", "--length=40", "--min_count=2", "--coverage=0.4"]


def changes_by_hand(data, folders):
    """Windows of 40 held-out tokens with the change of every target: rows of (token, target or None, change)."""
    text = [
        (token, number)
        for number, document in enumerate(TokenStore.open(shard_folder(data), "held_out").documents())
        for token in document.tolist()
    ]
    special = {load_tokenizer(shard_folder(data)).token_to_id(name) for name in ("<bos>", "<eos>")}
    models = [open_model(folder).decoder for folder in folders]
    windows = {}
    for start in range(0, len(text) - 40, 40):
        tokens = [token for token, _ in text[start : start + 40]]
        with torch.no_grad():
            logits = [model(torch.tensor([tokens]))[0] for model in models]
        row = []
        for place in range(40):
            (_, own), (target, other) = text[start + place], text[start + place + 1]
            change = abs(float(logits[1][place, target] - logits[0][place, target]))
            row.append((tokens[place], None if own != other or target in special else target, change))
        windows[tuple(tokens)] = row
    return windows


def test_the_result_against_whole_logits(prepared, run_folder, tmp_path):
    tuned = write_run(tmp_path / "tuned", prepared, std=0.45)  # of the same shape, with a training window of 64 tokens
    assert main([str(run_folder), str(tuned), "-o", str(tmp_path / "impact"), *WORDS]) == 0
    result = json.loads((tmp_path / "impact" / "impact.json").read_text())
    tokens = held_out_windows(prepared, length=40, windows=12, seed=0).tokens.tolist()
    by_hand = changes_by_hand(prepared, (run_folder, tuned))
    rows = [by_hand[tuple(row)] for row in tokens]
    changes = np.array([[change for _, _, change in row] for row in rows])
    targets = [[target for _, target, _ in row] for row in rows]
    scored = np.array([[target is not None for target in row] for row in targets])
    marked, places = marked_by_hand(changes, scored, 0.2), np.argwhere(scored).tolist()
    occurs = Counter(targets[w][i] for w, i in places)
    hits = Counter(targets[w][i] for w, i in places if marked[w, i])
    ids = sorted(occurs)
    taken = taken_by_hand([occurs[t] for t in ids], [hits[t] for t in ids], 0.4, 2)
    texts = token_texts(load_tokenizer(shard_folder(prepared)))

    assert (result["targets"], result["marked"]) == (len(places), int(marked.sum()))
    assert result["token_ids"] == sorted(ids[k] for k in taken)
    assert result["held_of_marked"] == pytest.approx(sum(hits[t] for t in result["token_ids"]) / marked.sum())
    assert Counter(row["label"] for row in result["types"]) == Counter(repr(texts[token]) for token in ids)
    found = {row["label"]: row for row in result["types"]}
    for token in ids:
        row, own = found[repr(texts[token])], [changes[w, i] for w, i in places if targets[w][i] == token]
        assert (row["occurrences"], row["marked"]) == (occurs[token], hits[token])
        assert row["rate"] == pytest.approx(hits[token] / occurs[token])
        assert row["share_of_marked"] == pytest.approx(hits[token] / marked.sum())
        assert row["share_of_all"] == pytest.approx(occurs[token] / len(places))
        assert row["mean_change"] == pytest.approx(np.mean(own), abs=TOL)
        assert row["chosen"] == (token in result["token_ids"])
    rates = [row["rate"] for row in result["types"]]
    assert rates == sorted(rates, reverse=True)


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
        assert choose_labels(table, coverage, min_count) == taken_by_hand(occurrences, marked, coverage, min_count)


def test_a_share_is_exact_where_its_product_is_not():
    # 0.1 * 30 is 3.0000000000000004: three of thirty marked are a tenth all the same
    assert choose_labels(pd.DataFrame({"occurrences": [3, 27, 27], "marked": [3, 14, 13]}), 0.1, 1) == [0]


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
