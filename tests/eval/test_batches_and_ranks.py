"""Needle tests of a float32 model come out alike at every batch size and on every number of ranks.

Rows hold answers and scores; a model with random weights finds next to no number, but its answers differ.
"""

from contextlib import nullcontext

import pytest
import torch
from torch import distributed

from lab.model.decoder import Decoder, DecoderConfig
from lab.positions import distance
from lab.probe.config import ProbeConfig
from lab.probe.effective_length import NeedleProbe
from lab.probe.measuring import ModelInTraining
from lab.probe.probe import Worker
from tests.ranks import meet

HAYSTACK = " ".join(f"bake{'.' if k % 7 == 6 else ''}" for k in range(4000))
STOP = 1


def make_decoder(bpe):
    """Draw weights in which attention matters, and let only digits, commas and the stop token be answered."""
    n_vocab = bpe.get_vocab_size()
    cfg = DecoderConfig(64, 2, 4, 2, 96, n_vocab, tie_embeddings=False)
    model = Decoder(cfg, distance=distance("string", shift=40, window=16), seed=None).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(p.numel()))
    answered = [STOP, *bpe.encode("0, 1, 2, 3, 4, 5, 6, 7, 8, 9").ids]
    with torch.no_grad():
        others = torch.ones(n_vocab, dtype=torch.bool).index_fill(0, torch.tensor(answered), False)
        model.head.weight[others] = 0
    return model


def run(bpe, tests, batch, worker=Worker()):
    """Run all tests of one length and return their rows."""
    config = ProbeConfig(
        seed=3, tests=tests, step=256, max_length=256, needles=4, digits=2, answer_budget=40, batch=batch
    )
    probe = NeedleProbe(config, bpe, HAYSTACK, window=128, stop_id=STOP)
    model = make_decoder(bpe)
    (result,) = probe.run(ModelInTraining(model, STOP, nullcontext), worker)
    return result.cases


def gather(rows):
    parts = [None] * distributed.get_world_size()
    distributed.all_gather_object(parts, rows)
    return [row for part in parts for row in part]


def share(bpe, tests, batch):
    """Run one rank's share and return what all found."""
    meet()
    return run(bpe, tests, batch, worker=Worker(distributed.get_rank(), distributed.get_world_size(), gather))


@pytest.mark.parametrize("n_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_batches_of_1_7_and_all_and_ranks_give_the_same_answers(ranks, bpe, n_ranks):
    rows = run(bpe, 18, 1)
    assert len({row["answer"] for row in rows}) > len(rows) / 4, "else they would be alike whatever was computed"
    assert run(bpe, 18, 500) == rows
    assert ranks(n_ranks).run(share, bpe, 18, 7) == [rows] * n_ranks
