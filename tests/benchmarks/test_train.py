"""The comparison of training speeds: its ratios by hand, and one model on both sides."""

import argparse

import pytest
import torch

from benchmarks import generation, record, train

CELL = train.Cell("tiny", 8, 16, "float32")
CPU = torch.device("cpu")


def options(**changed):
    return argparse.Namespace(**{"sides": "ours", "threads": 1, "rounds": 2, "steps": 1, "warm_up": 1, **changed})


def test_ratios_are_medians_of_rounds_against_the_fastest_peer(tmp_path):
    spent = {
        "ours": train.Spent([2.0, 4.0, 3.0], [1.0] * 3),
        "slow": train.Spent([9.0] * 3, [1.0] * 3),
        "fast": train.Spent([4.0, 4.0, 6.0], [9.0] * 3),
    }
    train.compare(CELL, spent, CPU, record.Log("train", tmp_path / "r.jsonl"))
    (written,) = record.read(tmp_path / "r.jsonl")
    assert written.figures == {"best": "fast", "ratio": 2.0, "low": 1.5, "high": 2.0}  # 2, 1 and 2


def test_speed_by_hand():
    row = train.figures(CELL, train.Spent([0.5, 0.25, 0.25], [1.0] * 3), 2, CPU, peak=1e9)
    assert (row["tokens_per_cpu_s"], row["tokens_per_s"]) == (2 * 16 / 0.25, 32)
    weights = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 128 * 32  # one layer: q and out, k and v, 64 in between; head
    assert row["flops_per_token_causal"] == 6 * weights + 12 * 32 * 4
    assert row["utilisation"] == pytest.approx(row["flops_per_token_causal"] * 128 / 1e9)


@pytest.mark.slow
def test_all_sides_have_one_model_and_loss():
    """The same weights for the lab and transformers give the same loss."""
    cfg = train.SIZES["tiny"]()
    tokens = torch.randint(cfg.vocab_size, (2, 9), generator=torch.Generator().manual_seed(0))
    ours = train.ours(cfg, 2, 8, CPU, "float32", compiled=False)
    theirs = train.transformers(cfg, CPU, "float32", compiled=False)
    theirs.model.load_state_dict(generation.in_transformers(ours.model).state_dict())
    losses = [peer.loss(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()) for peer in (ours, theirs)]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=0)
