"""Recall in the probes of a run: of its held-out text, with its own evidence, and the same after a resume."""

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
    "--data.held_out_frac=0.3",
    "--train.tokens=4096",
    "--probe.every_tokens=2048",
    "--optim.warmup_steps=1",
    "--probe.tests=1",
    "--probe.max_length=128",
    "--probe.distance_tests=2",
    "--evidence.tokens=2",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("recall"), "whole", *WORDS)


def test_a_probe_records_the_recall_of_the_held_out_text(run):
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
