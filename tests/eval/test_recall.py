"""eval.recall on folders of transformers and of the lab's export, and its files."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from eval.recall import main
from lab.data.config import Bpe, DataConfig
from lab.data.mqar import Mqar
from lab.data.preparation import prepare
from lab.data.shards import TokenStore
from lab.data.tokenizer import load_tokenizer
from lab.evidence.repeat import Repeat
from lab.loading import open_model
from tests.evidence import brute
from tests.opened import write_run

QUICK = ["--targets=12", "--bins=2,8,16,32", "-o", "out", "--json"]


def rows_of(words, capsys):
    assert main(words) == 0
    *bins, own = json.loads(capsys.readouterr().out)["rows"]
    assert own["metric"] == "no_evidence"
    return [*bins, {**own, "distance": 0}]


def test_a_model_of_transformers(hugging_face_folder, bpe, tmp_path, monkeypatch, capsys):
    """The gain is the difference of the losses that transformers itself computes of both contexts."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    texts = ["".join(generator.choice([*"abcd"], 60)) for _ in range(4)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = [str(hugging_face_folder), "--text=texts.jsonl", "--evidence=repeat:tokens=2", *QUICK]
    *bins, own = rows_of([word.replace("targets=12", "targets=9999") for word in words], capsys)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(hugging_face_folder, dtype=torch.float32)
    head = bpe.encode("").ids
    losses = {row["distance"]: [] for row in bins}
    without = []
    with torch.no_grad():
        for text in texts:
            ids = head + bpe.encode(text, add_special_tokens=False).ids
            assert len(ids) <= own["window"]
            for place in range(1, len(ids)):
                d = brute.repeat(ids, place, 2)
                if d >= 2:
                    pair = [ids[:place], ids[place - d + 1 : place]]
                    logits = [theirs(torch.tensor([context])).logits[0, -1] for context in pair]
                    nats = [-float(each.log_softmax(-1)[ids[place]]) for each in logits]
                    losses.get(max(edge for edge in (2, 8, 16, 32) if edge <= d), []).append(nats)
                elif not d:
                    logits = theirs(torch.tensor([ids[:place]])).logits[0, -1]
                    without.append((-float(logits.log_softmax(-1)[ids[place]]), int(logits.argmax()) == ids[place]))
    assert len(bins) > 1
    for row in bins:
        whole, cut = np.mean(losses[row["distance"]], axis=0)
        assert row["n"] == len(losses[row["distance"]])
        assert (row["nats_whole"], row["nats_cut"]) == pytest.approx((whole, cut), abs=1e-4)
        assert row["score"] == pytest.approx(cut - whole, abs=1e-4)
    assert (own["n"], own["documents"]) == (len(without), 4)
    assert (own["score"], own["right_whole"]) == pytest.approx(tuple(np.mean(without, axis=0)), abs=1e-4)
    assert own["low"] < own["score"] < own["high"]
    assert own["evidence"] == asdict(Repeat(tokens=2))


def test_labels_of_held_out_mqar(tmp_path, monkeypatch, capsys):
    """What is asked for is found by its words; a value is right where the model says so with all of its piece."""
    monkeypatch.chdir(tmp_path)
    corpus = Mqar(documents=150, words=24, pairs=5, tokens=32, power_a=0.5)
    data = DataConfig(corpus=corpus, tokenizer=Bpe(vocab_size=500), window=24, held_out_frac=0.2, folder="shards")
    folder = prepare(data, progress=False).folder
    place, tokenizer = write_run(tmp_path / "runs" / "mqar", data), load_tokenizer(folder)
    assert main([str(place), "--evidence=asked", "--targets=9999", "--bins=2,8,16", "-o", "out", "--json"]) == 0
    bins = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["metric"] == "recall"]
    decoder, found, cut = open_model(place).decoder, {2: [], 8: [], 16: []}, 0
    for ids in TokenStore.open(folder, "held_out").documents():
        words = [tokenizer.decode([token]) for token in ids]
        for at in range(11, 33):  # the slots, behind the first token and five pairs
            if at % 2 == 0 and (key := words[at - 1]) in words[1:11:2]:
                begin, distance = (at - 1) // 24 * 24, at - 1 - words.index(key)
                if at - distance < begin:
                    cut += 1
                    continue
                with torch.no_grad():
                    log_p = decoder(torch.from_numpy(ids[None, begin:at].astype(np.int64)))[0, -1].log_softmax(-1)
                scores = int(log_p.argmax()) == ids[at], -float(log_p[ids[at]])
                found[max(edge for edge in found if edge <= distance)].append(scores)
    assert cut > 5
    assert [row["distance"] for row in bins] == [2, 8, 16]
    for row in bins:
        assert row["n"] == len(found[row["distance"]]) > 10
        scores = row["right_whole"], row["nats_whole"]
        assert scores == pytest.approx(tuple(np.mean(found[row["distance"]], axis=0)), abs=1e-4)


def test_one_document_is_refused(run_folder, text_file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([str(run_folder), f"--text={text_file}"]) == 2
    rule = "no bin has 8 targets with evidence in two of its 1 documents; give more text, or other bins"
    assert capsys.readouterr().err.splitlines()[-1] == f"--text={text_file}: {rule}"
