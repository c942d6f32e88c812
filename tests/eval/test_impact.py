"""The analysis of impactful tokens through its command, against whole logits and sorted lists."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

from eval.engine.impactful import token_texts
from eval.impact import main
from lab.data.preparation import shard_folder
from lab.data.shards import TokenStore
from lab.data.tokenizer import load_tokenizer
from lab.loading import open_model
from tests.data.test_part_of_speech import folder as tagger_folder  # noqa: F401  a fixture
from tests.eval.test_impactful import marked_by_hand, taken_by_hand
from tests.opened import write_run

TOL = 1e-4  # of changes near 10: float32 products, a whole row of the head or all of them
FIXED = ["--windows=12", "--length=40", "--min_count=2"]


@pytest.fixture(scope="module")
def base(prepared, tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "base", prepared)


@pytest.fixture(scope="module")
def tuned(prepared, tmp_path_factory):
    """Another model of the same shape, whose training window is 64 tokens."""
    return write_run(tmp_path_factory.mktemp("runs") / "tuned", prepared, std=0.45)


@pytest.fixture
def analysed(base, tuned, tmp_path, capsys):
    """A function that runs the command and returns the result and what was printed."""

    def analyse(*words):
        assert main([str(base), str(tuned), "-o", str(tmp_path / "impact"), *words]) == 0
        return json.loads((tmp_path / "impact" / "impact.json").read_text()), capsys.readouterr().out

    return analyse


@pytest.fixture(scope="module")
def by_hand(prepared, base, tuned):
    """Windows of 40 held-out tokens with the change of every target: rows of (token, target or None, change)."""
    text = [
        (token, number)
        for number, document in enumerate(TokenStore.open(shard_folder(prepared), "held_out").documents())
        for token in document.tolist()
    ]
    special = {load_tokenizer(shard_folder(prepared)).token_to_id(name) for name in ("<bos>", "<eos>")}
    models = [open_model(folder).decoder for folder in (base, tuned)]
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


def drawn(by_hand, prepared, n):
    """The windows that the command draws, in its order."""
    from lab.data.packing import held_out_windows

    tokens = held_out_windows(prepared, length=40, windows=n, seed=0).tokens.tolist()
    return [by_hand[tuple(row)] for row in tokens]


def test_the_result_against_whole_logits(by_hand, prepared, analysed):
    result, _ = analysed(*FIXED, "--coverage=0.4")
    rows = drawn(by_hand, prepared, 12)
    changes = np.array([[change for _, _, change in row] for row in rows])
    targets = [[target for _, target, _ in row] for row in rows]
    scored = np.array([[target is not None for target in row] for row in targets])
    marked = marked_by_hand(changes, scored, 0.2)
    places = [(w, i) for w in range(12) for i in range(40) if scored[w, i]]
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


def test_models_of_other_tokenizers_are_refused(base, hugging_face_folder, tmp_path, capsys):
    assert main([str(hugging_face_folder), str(base), "-o", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err == (
        f"BASE={hugging_face_folder}: its tokenizer is not that of TUNED; give the model that was tuned\n"
    )
