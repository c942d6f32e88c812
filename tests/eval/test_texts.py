"""Texts of one length: from a file or a run's corpus, the first token in front, no two alike."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from eval.engine.texts import draw_texts
from lab.data.preparation import shard_folder
from lab.data.tokenizer import load_tokenizer
from lab.errors import ConfigError, DataError


def draw(tokenizer, path=None, data=None, n_tokens=12, texts=5, seed=0, vocab_size=400):
    source = None if path is None else str(path)
    return draw_texts(source, data, tokenizer, n_tokens=n_tokens, texts=texts, seed=seed, vocab_size=vocab_size)


def numbers_tokenizer():
    """A tokenizer without special tokens, whose tokens are the words 0 .. 99."""
    tokenizer = Tokenizer(models.WordLevel({str(n): n for n in range(100)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def test_texts_are_pieces_of_the_file_behind_the_first_token(bpe, text_file):
    ids = bpe.encode(text_file.read_text(), add_special_tokens=False).ids
    rows = draw(bpe, text_file, texts=20)
    assert (rows.shape, rows.dtype) == ((20, 12), np.int64)
    starts = []
    for row in rows.tolist():
        assert row[0] == bpe.token_to_id("<bos>")
        starts += [start for start in range(0, len(ids), 11) if ids[start : start + 11] == row[1:]]
    assert len(set(starts)) >= 20, "every text is a piece, and no piece serves twice"


def test_pieces_do_not_overlap_and_are_drawn_by_the_seed(tmp_path):
    path = tmp_path / "numbers.txt"
    path.write_text(" ".join(map(str, range(100))))
    rows = draw(numbers_tokenizer(), path, n_tokens=10, texts=10, seed=3)
    assert sorted(rows.flatten().tolist()) == list(range(100))
    assert rows[:, 0].tolist() != list(range(0, 100, 10))
    assert all((np.diff(row) == 1).all() for row in rows)
    assert rows.tolist() == draw(numbers_tokenizer(), path, n_tokens=10, texts=10, seed=3).tolist()
    assert rows.tolist() != draw(numbers_tokenizer(), path, n_tokens=10, texts=10, seed=4).tolist()


def test_a_text_of_one_token(bpe, text_file):
    assert draw(bpe, text_file, n_tokens=1, texts=2).tolist() == [[0], [0]]


def test_a_run_has_texts_of_its_own(prepared):
    tokenizer = load_tokenizer(shard_folder(prepared))
    rows = draw(tokenizer, data=prepared, n_tokens=64, texts=3)
    assert len({tuple(row) for row in rows.tolist()}) == 3


def test_what_gives_no_texts_is_one_line(bpe, tmp_path, text_file):
    room = len(bpe.encode(text_file.read_text()).ids) // 1000
    for kind, words, line in (
        (
            DataError,
            {"tokenizer": None},
            "tokenizer.json: missing; put it into the Hugging Face folder, or prepare ",
        ),
        (ConfigError, {}, "--text: must be set, a Hugging Face folder has no corpus of its own; give a text file"),
        (DataError, {"path": tmp_path / "x.txt"}, f"--text={tmp_path / 'x.txt'}: no such file; give a .txt, "),
        (DataError, {"path": text_file, "vocab_size": 99}, "tokenizer.json: has more ids than the model's 99; "),
        (
            DataError,
            {"path": text_file, "n_tokens": 1001, "texts": 40},
            f"--texts=40: --text={text_file} has room for {room} texts of 1001 tokens; lower it, shorten the texts "
            "or give a longer --text",
        ),
    ):
        with pytest.raises(kind) as caught:
            draw(**{"tokenizer": bpe, **words})
        assert str(caught.value).startswith(line)
        assert "\n" not in str(caught.value)
