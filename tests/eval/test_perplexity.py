"""eval.perplexity as a command: on a run folder, a Hugging Face folder and text files."""

import hashlib
import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from eval.engine.sliding import TextLosses, text_losses, windows
from eval.engine.subject import Subject
from eval.perplexity import main
from lab.core.types import IGNORE
from lab.data.preparation import shard_folder
from lab.data.shards import TokenStore
from lab.loading import open_model
from tests.eval.commands import lines_of, runner, words_of

run = runner(main)


def rows_of(folder):
    return lines_of(folder, "perplexity")


def documents_of(prepared):
    return [np.asarray(ids) for ids in TokenStore.open(shard_folder(prepared), "held_out").documents()]


def test_the_command_measures_a_run_once(run_folder, prepared, tmp_path, capsys, monkeypatch):
    words = [run_folder, "--documents=3", "--lengths=16,24", "--stride=8", "-o", tmp_path]
    status, out, _ = run(words, capsys)
    assert status == 0
    assert out.splitlines()[-1] == f"written to {next(tmp_path.glob('perplexity-*.jsonl'))}"
    rows = rows_of(tmp_path)
    long_enough = [ids for ids in documents_of(prepared) if len(ids) >= 24]
    chosen = [long_enough[n] for n in sorted(np.random.default_rng(0).permutation(len(long_enough))[:3])]
    model = open_model(run_folder)
    for row, context in zip(rows, (16, 24), strict=True):
        nll, count = 0.0, 0
        for ids in chosen:
            text, scored = torch.from_numpy(ids.astype(np.int64)), 1
            for begin in range(0, len(text), 8):
                part = text[begin : begin + context].clone()
                targets = part[1:].clone()
                part[0] = text[0]  # <bos>
                with torch.no_grad():
                    losses = F.cross_entropy(model.decoder(part[None])[0, :-1].double(), targets, reduction="none")
                nll += float(losses[scored - 1 - begin :].sum())
                count += len(part) - (scored - begin)
                scored = begin + len(part)
                if scored == len(text):
                    break
        assert row["scored_tokens"] == count == sum(len(ids) - 1 for ids in chosen)
        assert row["loss"] == pytest.approx(nll / count, rel=1e-6)  # of a float32 decoder
        assert row["score"] == pytest.approx(math.exp(row["loss"]))
        n_bytes = sum(len(model.tokenizer.decode(ids[1:].tolist()).encode()) for ids in chosen)
        assert row["bits_per_byte"] == pytest.approx(math.log2(row["score"]) * count / n_bytes)
        assert row["low"] < row["score"] < row["high"]
        assert (row["protocol"], row["length"], row["stride"], row["n"]) == ("sliding-window", context, 8, 3)
        assert row["bos"]
        assert row["shorter_left_out"] == len(documents_of(prepared)) - len(long_enough)
        assert [str(context), f"{row['score']:.4f}"] in [line[:2] for line in words_of(out)]
    monkeypatch.setattr(Subject, "losses", None)
    assert (run(words, capsys)[0], rows_of(tmp_path)) == (0, rows)
    monkeypatch.undo()
    assert run([*words, "--bos=false"], capsys)[0] == 0
    first, second = rows_of(tmp_path)[0], rows_of(tmp_path)[2]
    assert (second["bos"], second["length"], second["scored_tokens"]) == (False, 16, first["scored_tokens"])
    assert second["loss"] != first["loss"]


def books(path, factors, n_words):
    """Write texts of their own numbers into a file."""
    texts = [" ".join(f"word {n * k % 97}." for n in range(n_words)) for k in factors]
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    path.write_text(texts[0] if path.suffix == ".txt" else "".join(lines))
    return texts


def test_a_hugging_face_folder_reads_files(hugging_face_folder, bpe, tmp_path, capsys):
    (tmp_path / "books").mkdir()
    texts = [*books(tmp_path / "books/a.jsonl", (3, 5), 60), *books(tmp_path / "books/b.txt", (7,), 60)]
    books(tmp_path / "books/c.jsonl", (3,), 2)
    words = [hugging_face_folder, f"--text={tmp_path / 'books'}", "--lengths=24", "--stride=6"]
    status, out, _ = run([*words, "--documents=3", "-o", tmp_path], capsys)
    assert status == 0, out
    (row,) = rows_of(tmp_path)
    documents = [bpe.encode(text).ids for text in texts]
    assert (row["scored_tokens"], row["shorter_left_out"], row["n"]) == (sum(len(ids) - 1 for ids in documents), 1, 3)
    assert (row["model"], row["checkpoint"]) == ("small-llama", None)
    hashed = hashlib.sha256()
    for ids in documents:
        hashed.update(np.array([len(ids), *ids], dtype="<i8").tobytes())
    assert row["texts"] == hashed.hexdigest()[:16]


def test_whole_windows_are_those_of_the_released_script(hugging_face_folder, bpe, tmp_path, capsys, monkeypatch):
    texts = books(tmp_path / "books.jsonl", (3, 5), 9)
    words = [hugging_face_folder, f"--text={tmp_path / 'books.jsonl'}", "--protocol=whole-windows", "-o", tmp_path]
    status, out, _ = run([*words, "--lengths=16,24", "--stride=7"], capsys)
    assert status == 0, out
    first, second = (bpe.encode(text).ids for text in texts)
    ids = torch.tensor([*first, *second[1:]])  # one text, which begins once
    decoder = open_model(hugging_face_folder).decoder
    for row, context in zip(rows_of(tmp_path), (16, 24), strict=True):
        begins = list(range(0, len(ids) - context, 7))[:-1]
        assert len(begins) > 2
        with torch.no_grad():
            parts = [ids[begin : begin + context] for begin in begins]
            means = [float(F.cross_entropy(decoder(part[None])[0, :-1].double(), part[1:])) for part in parts]
        assert row["loss"] == pytest.approx(sum(means) / len(means), rel=1e-6)
        assert (row["n"], row["protocol"], row["low"], row["bos"]) == (2, "whole-windows", None, False)
    status, _, err = run([*words, "--stride=7", f"--lengths={len(ids) - 7}"], capsys)
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith(f"--lengths={len(ids) - 7}: whole windows of it need {len(ids) + 1} tokens")
    monkeypatch.setattr("eval.perplexity.load_documents", lambda *_: [])
    status, _, err = run([hugging_face_folder, *words[2:], "--lengths=16", "--stride=7"], capsys)
    assert (status, err.count("\n")) == (2, 1)
    assert "need 24 tokens, and all documents together have 0" in err


@pytest.mark.parametrize("least", [28, 29, 51])
def test_documents_of_just_the_least_tokens_are_taken(least, run_folder, prepared, tmp_path, capsys):
    lengths = [len(ids) for ids in documents_of(prepared)]
    count = sum(length >= least for length in lengths)
    words = [run_folder, "--lengths=9", f"--documents={count}", f"--min_tokens={least}"]
    assert run([*words, "-o", tmp_path], capsys)[0] == 0
    (row,) = rows_of(tmp_path)
    assert (row["scored_tokens"], row["n"]) == (sum(length - 1 for length in lengths if length >= least), count)
    assert (row["shorter_left_out"], 28 in lengths) == (len(lengths) - count, True)


def model_of(table):
    """Make a model whose prediction depends on the last token alone; table[a][b] is p(b | a)."""
    probabilities = torch.tensor(table, dtype=torch.float64)

    def score(tokens, targets):
        losses = -probabilities[tokens, targets.clamp_min(0)].log()
        return losses * (targets != IGNORE)

    return score


def test_a_bigram_model_by_hand():
    # p(b | a): 0 1 0 0 1 has steps 01, 10, 00, 01 of 3/4, 1/2, 1/4, 3/4: product 9/128; 1 1 has 1/2
    table = [[0.25, 0.75], [0.5, 0.5]]
    texts, cut = [np.array([0, 1, 0, 0, 1]), np.array([1, 1])], partial(windows, context=3, stride=1)
    losses = text_losses(model_of(table), texts, cut, rows=2)
    assert losses.nll.tolist() == pytest.approx([math.log(128 / 9), math.log(2)])
    assert losses.tokens.tolist() == [4, 1]
    assert losses.perplexity == pytest.approx((256 / 9) ** (1 / 5))
    # <bos>, here 1, in place of a window's first token: a window of 2 predicts its scored token from it alone
    losses = text_losses(model_of(table), texts[:1], partial(windows, context=2, stride=1), rows=2, bos=1)
    assert losses.nll.tolist() == [pytest.approx(-math.log(3 / 4 * 1 / 2 * 1 / 2 * 1 / 2))]  # 01, then 10, 10, 11
    # disjoint windows of 2 see the steps 01 and 00 alone: 3/4 * 1/4
    losses = text_losses(model_of(table), texts[:1], partial(windows, context=2, stride=2), rows=2)
    assert (losses.tokens.tolist(), losses.nll.tolist()) == ([2], [pytest.approx(math.log(16 / 3))])


def test_limits_of_unequal_texts_by_hand():
    # nll 3, 1 over 1, 3 tokens: loss 1; residuals 3 - 1, 1 - 3; se^2 = 2 * 8 / 16; t_1 = 12.7062
    losses = TextLosses(np.array([3.0, 1.0]), np.array([1, 3]))
    assert [math.log(limit) for limit in losses.limits] == pytest.approx([1 - 12.7062, 1 + 12.7062], rel=1e-5)
    assert TextLosses(np.array([3.0]), np.array([2])).limits is None
