"""Texts of one length: from a file or a run's corpus, the first token in front, no two alike."""

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from eval.engine.texts import sample_texts
from lab.core.errors import DataError
from tests.refusals import refused


def draw(tokenizer, text, n_tokens=12, texts=5, seed=0, vocab_size=400):
    return sample_texts(text, "--text=x", tokenizer, n_tokens=n_tokens, texts=texts, seed=seed, vocab_size=vocab_size)


def test_texts_are_pieces_of_the_file_behind_the_first_token(bpe, text_file):
    ids = bpe.encode(text_file.read_text(), add_special_tokens=False).ids
    rows = draw(bpe, text_file.read_text(), texts=20)
    assert (rows.shape, rows.dtype) == ((20, 12), np.int64)
    assert set(rows[:, 0].tolist()) == {bpe.token_to_id("<bos>")}
    pieces = [ids[start : start + 11] for start in range(0, len(ids), 11)]
    assert all(row[1:] in pieces for row in rows.tolist())


def test_pieces_do_not_overlap_and_are_drawn_by_the_seed():
    """Of a tokenizer without special tokens, whose tokens are the words 0 .. 99."""
    tokenizer = Tokenizer(models.WordLevel({str(n): n for n in range(100)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    text = " ".join(map(str, range(100)))
    first, again, other = (draw(tokenizer, text, n_tokens=10, texts=10, seed=seed).tolist() for seed in (3, 3, 4))
    pieces = [list(range(start, start + 10)) for start in range(0, 100, 10)]
    assert sorted(first) == pieces != first
    assert first == again != other


def test_what_gives_no_texts_is_one_line(bpe, text_file):
    text = text_file.read_text()
    room = len(bpe.encode(text).ids) // 1000
    for words, line in (
        ({"vocab_size": 99}, "tokenizer.json: has more ids than the model's 99; "),
        ({"n_tokens": 1001, "texts": 40}, f"--texts=40: --text=x has room for {room} texts of 1001 tokens; lower it, "),
    ):
        with refused(line, error=DataError):
            draw(bpe, text, **words)
