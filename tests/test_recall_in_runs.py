from types import SimpleNamespace

import pytest

from lab.data.preparation import shard_folder
from lab.data.shards import TokenStore
from lab.evidence.methods import Repeat
from lab.loading import open_model
from lab.model.attention.inspection import token_scores
from lab.probe import measuring
from lab.probe.recall import RecallTest
from tests.fits import probed, train

WORDS = (
    *("--data.held_out_frac=0.3", "--train.tokens=4096", "--probe.every_tokens=2048", "--optim.warmup_steps=1"),
    *("--probe.tests=1", "--probe.max_length=128", "--probe.distance_tests=2", "--evidence.tokens=2"),
)


def test_a_probe_records_the_recall_of_the_held_out_text(tmp_path):
    run = train(tmp_path, "whole", *WORDS)
    first, last = (line["recall"] for line in probed(run) if "effective_length" in line)
    assert first != last
    opened = open_model(run)
    documents = TokenStore.open(shard_folder(opened.experiment.data), "held_out").documents()
    test = RecallTest(documents, Repeat(tokens=2), opened.train_len, [16, 23, 32, 45, 64], most=measuring.TARGETS)
    model = SimpleNamespace(scores=lambda *texts: token_scores(opened.decoder, *texts)[:2].detach())
    expected = test.summarize(test.scores(model, test.targets))
    assert len(expected) == len(last) == 5
    for row, by_hand in zip(last, expected, strict=True):
        assert row == pytest.approx(by_hand, abs=1e-5)
