"""Parts of speech by small pipelines made here, whose labels are known word by word."""

import numpy as np
import pytest

from eval.engine.impactful import token_texts
from lab.data.selecting import align_labels, label_types, open_tagger

WORDS = {"magic": "ADJ", "numbers": "NOUN", "is": "AUX", "One": "NUM", "of": "ADP", ".": "PUNCT", "the": "DET"}
TEXT = "One of the magic numbers is magic.\n\nOne is the"


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    """A pipeline, saved and opened: a word's label by its text, none for other words."""
    pipeline = pytest.importorskip("spacy").blank("en")
    rules = pipeline.add_pipe("attribute_ruler")
    for word, label in WORDS.items():
        rules.add([[{"ORTH": word}]], {"POS": label})
    folder = tmp_path_factory.mktemp("tagger")
    pipeline.to_disk(folder)
    return open_tagger(str(folder))


def labelled(tagger, bpe, text):
    """List (text, label) of every token of a text."""
    texts, ids = token_texts(bpe), bpe.encode(text, add_special_tokens=False).ids
    words = [texts[token] for token in ids]
    return list(zip(words, align_labels(words, tagger(text)), strict=True))


def test_tokens_take_the_label_of_their_word(tagger, bpe):
    for piece, label in labelled(tagger, bpe, TEXT):
        words = [word for word in WORDS if piece.strip() and piece.strip() in word]
        expected = {WORDS[word] for word in words} if piece.strip() else {"SPACE"}
        assert label in expected, (piece, label)
    pieces = labelled(tagger, bpe, "xq magic")
    assert {label for piece, label in pieces[:-1]} == {"X"}, "every piece of a word that the pipeline does not label"
    assert pieces[-1] == (" magic", "ADJ")


def test_a_type_takes_its_most_frequent_label(bpe, tagger):
    texts = token_texts(bpe)
    rows = [np.array(bpe.encode(text).ids) for text in (TEXT, TEXT + " magical", "magician magic")]
    labels = label_types(tagger, rows, texts)
    seen = {}
    for row in rows:
        text = bpe.decode(row.tolist())
        for piece, label in labelled(tagger, bpe, text):
            seen.setdefault(piece, []).append(label)
    by_text = {texts[token]: label for token, label in labels.items()}
    assert by_text == {piece: min(set(own), key=lambda x: (-own.count(x), x)) for piece, own in seen.items()}
    assert bpe.token_to_id("<bos>") not in labels
    assert (by_text[" numbers"], by_text.get("\n\n", "SPACE")) == ("NOUN", "SPACE")
