"""Classes of tokens by hand, and the texts of tokens as they stand inside a text."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from eval.engine.impactful import CLASSES, label_tokens, token_class, token_texts

BY_HAND = {
    "line_break": ["\n", "\n\n", " \n", "\r\n\t"],
    "space": [" ", "   ", "\t", "\u3000"],
    "number": ["7", " 12", "3.14", "1,000", "-5", " $9", "\u00b2", "\u0663", "50%", "\u2163"],
    "punctuation": [".", " (", "...", "?!", " +", "\u2014", "\U0001f600", '."'],
    "capitalised": ["The", " The", "A1", " Ab-c", "\u00c4rger", "\nThe"],
    "word_start": [" the", " x1", " \u4e09", "\tthe", " don't"],
    "continuation": ["ing", "s", "x1", "\u4e09", "don't", "\u00e9"],
    "other": ["", "\ufffd", "a\ufffd", "\u0301", "\x00", " \x00", "'s", "(a", "7th"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BY_HAND.items() for text in texts])
def test_classes_by_hand(name, text):
    assert token_class(text) == name


def test_every_class_is_named():
    assert ("special", *BY_HAND) == CLASSES


def test_texts_put_together_are_the_text(bpe):
    texts = token_texts(bpe)
    assert len(texts) == bpe.get_vocab_size()
    for text in ("One of the magic numbers is 144.\n\nWhat ", " a b", "abc\td", "x"):
        ids = bpe.encode(text, add_special_tokens=False).ids
        assert "".join(texts[token] for token in ids) == text
    special = [token for token, text in enumerate(texts) if text is None]
    assert special == [bpe.token_to_id("<bos>"), bpe.token_to_id("<eos>")]
    assert (label_tokens("class", texts, {})[0] == CLASSES.index("special")).sum() == 2
    assert texts[bpe.token_to_id("\u00c3")] == "\ufffd", "the first byte of a character"


def test_leading_spaces_show_where_a_decoder_drops_them_in_front():
    pieces = {"a": 0, "\u2581b": 1, "c": 2, "<s>": 3}
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>"])
    assert tokenizer.decode([1]) == "b"
    assert token_texts(tokenizer) == ["a", " b", "c", None]
