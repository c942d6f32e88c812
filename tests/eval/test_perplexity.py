"""eval.perplexity as a command: on a run folder, a Hugging Face folder and text files."""

import json
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from eval import perplexity
from eval.engine.texts import draw_documents
from eval.perplexity import main
from lab.data.preparation import shard_folder
from lab.data.shards import TokenStore
from lab.errors import DataError
from lab.loading import open_model
from tests.eval.commands import check_faults, rows_named, runner, words_of

run = runner(main)
rows_of = rows_named("perplexity.jsonl")


def documents_of(prepared):
    return [np.asarray(ids) for ids in TokenStore.open(shard_folder(prepared), "held_out").documents()]


def test_the_command_measures_a_run(run_folder, prepared, tmp_path, capsys):
    words = [run_folder, "--documents=3", "--lengths=16,24", "--stride=8", "-o", tmp_path]
    status, out, _ = run(words, capsys)
    assert status == 0
    assert out.splitlines()[-1] == f"written to {tmp_path / 'perplexity.jsonl'}"
    rows = rows_of(tmp_path)
    long_enough = [ids for ids in documents_of(prepared) if len(ids) >= 24]
    chosen = sorted(np.random.default_rng(0).permutation(len(long_enough))[:3])
    decoder = open_model(run_folder).decoder
    for row, context in zip(rows, (16, 24), strict=True):
        nll, count = 0.0, 0
        for number in chosen:
            text, scored = torch.from_numpy(long_enough[number].astype(np.int64)), 1
            for begin in range(0, len(text), 8):
                part = text[begin : begin + context]
                with torch.no_grad():
                    losses = F.cross_entropy(decoder(part[None])[0, :-1].double(), part[1:], reduction="none")
                nll += float(losses[scored - 1 - begin :].sum())
                count += len(part) - (scored - begin)
                scored = begin + len(part)
                if scored == len(text):
                    break
        assert row["scored_tokens"] == count == sum(len(long_enough[n]) - 1 for n in chosen)
        assert row["loss"] == pytest.approx(nll / count, rel=1e-6)  # of a float32 decoder
        assert row["score"] == pytest.approx(math.exp(row["loss"]))
        assert row["low"] < row["score"] < row["high"]
        known = (row["model"], row["checkpoint"], row["method"], row["protocol"], row["precision"])
        assert known == ("tiny", "tokens-000000000004096", "rope+plain", "sliding-window", "float32")
        assert (row["length"], row["stride"], row["n"], row["seed"]) == (context, 8, 3, 0)
        assert row["shorter_left_out"] == len(documents_of(prepared)) - len(long_enough)
        assert row["hardware"]
        assert row["seconds"] > 0
        assert [str(context), f"{row['score']:.4f}"] in [words[:2] for words in words_of(out)]


def test_finished_lengths_are_taken_up_again(run_folder, tmp_path, capsys, monkeypatch):
    base = [run_folder, "--min_tokens=40", "-o", tmp_path]
    words = [*base, "--documents=2", "--stride=8"]
    assert run([*words, "--lengths=16"], capsys)[0] == 0
    file = tmp_path / "perplexity.jsonl"
    first = file.read_text()
    file.write_text(first + '{"half a li')
    asked = []
    true = perplexity.text_losses

    def listening(score, texts, context, stride, **options):
        asked.append(context)
        return true(score, texts, context, stride, **options)

    monkeypatch.setattr(perplexity, "text_losses", listening)
    assert run([*words, "--lengths=16,32"], capsys)[0] == 0
    assert asked == [32]
    assert [row["length"] for row in rows_of(tmp_path)] == [16, 32]
    assert file.read_text().startswith(first)
    rerope = ["--position.distance.method=rerope", "--position.distance.window=4"]
    others = (["--documents=2", "--stride=4"], ["--documents=3", "--stride=8"])
    for other in ([*base, *others[0]], [*base, *others[1]], [*words, "--seed=1"], [*words, *rerope]):
        assert run([*other, "--lengths=16"], capsys)[0] == 0
    assert asked == [32, 16, 16, 16, 16]  # other numbers, measured


def test_a_hugging_face_folder_reads_files(hugging_face_folder, bpe, tmp_path, capsys):
    texts = [" ".join(f"word {n * k % 97}." for n in range(60)) for k in (3, 5, 7)]
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text(texts[0])
    (tmp_path / "books" / "b.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in [*texts[1:], "short"]))
    words = [hugging_face_folder, f"--text={tmp_path / 'books'}", "--lengths=24", "--stride=6", "--tokens=50"]
    status, out, _ = run([*words, "--documents=3", "-o", tmp_path], capsys)
    assert status == 0, out
    (row,) = rows_of(tmp_path)
    assert (row["scored_tokens"], row["shorter_left_out"], row["n"]) == (3 * 49, 1, 3)
    assert (row["model"], row["checkpoint"]) == ("small-llama", None)
    drawn = draw_documents(
        str(tmp_path / "books"), None, bpe, documents=3, least=24, most=50, seed=0, vocab_size=bpe.get_vocab_size()
    )
    assert [ids.tolist() for ids in drawn.ids] == [bpe.encode(text).ids[:50] for text in texts]
    assert row["texts"] == drawn.digest


def test_documents_of_just_the_least_tokens_are_taken(prepared, bpe):
    lengths = sorted(len(ids) for ids in documents_of(prepared))
    for least in (28, 29, 51):
        count = sum(length >= least for length in lengths)
        drawn = draw_documents(
            None, prepared, bpe, documents=count, least=least, most=40, seed=3, vocab_size=bpe.get_vocab_size()
        )
        assert sorted(map(len, drawn.ids)) == [min(length, 40) for length in lengths if length >= least]
        assert drawn.shorter == len(lengths) - count
    assert 28 in lengths


def test_a_tokenizer_of_another_model_is_refused(bpe, text_file):
    with pytest.raises(DataError, match="has more ids than the model's 100; "):
        draw_documents(str(text_file), None, bpe, documents=1, least=10, most=None, seed=0, vocab_size=100)


MISTAKES = {  # words: every fault's field, value and rule
    "RUN --lengths=1,8": ("--lengths=1: must be >= 2, a token predicts the next;",),
    "RUN --lengths=16,8 --stride=9": ("--stride=9: must be <= 8, the shortest length, or tokens are passed over;",),
    "RUN --lengths=16 --tokens=15": ("--tokens=15: must be >= 16, the longest length;",),
    "RUN --min_tokens=20 --tokens=15": ("--tokens=15: must be >= 20, min_tokens;",),
    "RUN --min_tokens=1": ("--min_tokens=1: must be >= 2, a token predicts the next;",),
    "RUN --text=/nowhere.txt": ("--text=/nowhere.txt: no such file;",),
    "RUN --lengths=4096": ("--documents=10: the held-out split has 0 documents of 4096 tokens or more",),
    "RUN --documents=2 -o /dev/null/x": ("-o /dev/null/x: cannot be written (Not a directory);",),
}


@pytest.mark.parametrize(("words", "lines"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_one_line_per_fault(run_folder, capsys, words, lines):
    status, out, err = run(words.replace("RUN", str(run_folder)).split(), capsys)
    assert (status, out) == (2, "")
    check_faults(err.splitlines(), lines)
