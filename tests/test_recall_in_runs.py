"""Recall in the probes of a run: its held-out text, the losses of each context alone, none where there is little."""

import numpy as np
import pytest
import torch

from lab.data.preparation import shard_folder
from lab.data.shards import TokenStore
from lab.loading import open_model
from lab.probe import measuring
from tests.evidence import brute
from tests.fits import assert_same_run, cut_after, probed, train

WORDS = (
    "--data.held_out_frac=0.3",
    "--train.tokens=4096",
    "--probe.every_tokens=2048",
    "--optim.warmup_steps=1",
    "--probe.tests=1",
    "--probe.max_length=128",
    "--probe.distance_tests=2",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("recall")


def summaries(run):
    return [line for line in probed(run) if "effective_length" in line]


def test_a_probe_records_what_each_text_gives_alone(place, monkeypatch):
    monkeypatch.setattr(measuring, "TARGETS", 10**6)
    run = train(place, "all", *WORDS, "--evidence.tokens=2")
    first, last = summaries(run)
    bins = last["recall"]
    assert [row["distance"] for row in bins] == [16, 23, 32, 45, 64]
    assert first["recall"] != bins
    opened = open_model(run)
    nats = {row["distance"]: [] for row in bins}
    for ids in TokenStore.open(shard_folder(opened.experiment.data), "held_out").documents():
        for begin in range(0, len(ids), opened.train_len):
            piece = [int(x) for x in ids[begin : begin + opened.train_len + 1]]
            for at in range(1, len(piece)):
                d = brute.repeat(piece, at, 2)
                if d >= 16:
                    pair = piece[:at], piece[at - d + 1 : at]
                    logits = [opened.decoder(torch.tensor([context]))[0, -1].detach() for context in pair]
                    losses = [-float(each.log_softmax(-1)[piece[at]]) for each in logits]
                    nats[max(edge for edge in nats if edge <= d)].append(losses)
    for row in bins:
        whole, cut = np.mean(nats[row["distance"]], axis=0)
        assert row["n"] == len(nats[row["distance"]])
        assert (row["nats_whole"], row["nats_cut"]) == pytest.approx((whole, cut), abs=1e-5)
        assert row["score"] == pytest.approx(cut - whole, abs=1e-5)


def test_a_resumed_run_records_the_same(place):
    run = train(place, "whole", *WORDS)
    assert all(row["n"] <= measuring.TARGETS for line in summaries(run) for row in line["recall"])
    assert all(line["recall"] for line in summaries(run))
    resumed = cut_after(run, run.with_name("resumed"))
    assert_same_run(train(place, resumed.name, *WORDS, resume=True), run)
