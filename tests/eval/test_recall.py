"""eval.recall on folders of transformers and of the lab's export, and its files."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from eval.recall import main
from lab.evidence.methods import Repeat
from lab.probe.recall import half_octaves
from tests.evidence import brute

QUICK = ["--targets=9999", "-o", "out", "--json"]


def test_a_model_of_transformers(hugging_face_folder, bpe, tmp_path, monkeypatch, capsys):
    """The gain is the difference of the losses that transformers itself computes of both contexts."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    texts = ["".join(generator.choice([*"abcd"], 60)) for _ in range(4)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = [str(hugging_face_folder), "--text=texts.jsonl", *QUICK]
    assert main(words) == 0
    *bins, own = json.loads(capsys.readouterr().out)["rows"]
    assert own["metric"] == "no_evidence"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(hugging_face_folder, dtype=torch.float32)
    head = bpe.encode("").ids
    losses = {row["distance"]: [] for row in bins}
    without = []
    with torch.no_grad():
        for text in texts:
            ids = head + bpe.encode(text, add_special_tokens=False).ids
            assert len(ids) <= own["window"]
            for place in range(1, len(ids)):
                d = brute.repeat(ids, place, 3)
                if d >= 2:
                    pair = [ids[:place], ids[place - d + 1 : place]]
                    logits = [theirs(torch.tensor([context])).logits[0, -1] for context in pair]
                    nats = [-float(each.log_softmax(-1)[ids[place]]) for each in logits]
                    losses.get(max(edge for edge in half_octaves(own["window"]) if edge <= d), []).append(nats)
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
    assert own["evidence"] == asdict(Repeat())
