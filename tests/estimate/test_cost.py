"""Hours and bytes on disk against arithmetic by hand."""

import numpy as np
import pytest

from lab.config import load_experiment
from lab.counts import PositionCounts
from lab.estimate.cost import cost_of, counts_bytes, paper_utilisation, shard_tokens_of
from lab.train.folder import RunFolder
from tests.estimate.small import small
from tests.forked import ROOT


def test_the_papers_run_takes_the_papers_time():
    tiny = load_experiment(ROOT / "configs/tiny_2k.yaml")
    cost = cost_of(tiny, peak_flops=312e12, utilisation=paper_utilisation())
    assert cost.hours / 24 == pytest.approx(28, abs=0.01)
    # matrices: 22 x (2048 x (2 x 2048 + 2 x 256) + 3 x 2048 x 5632) + 128256 x 2048 = 1,231,552,512 weights;
    # 6 x that + 12 x 22 x 2048 x 1024 pairs = 7,942,963,200
    assert (cost.flops_per_token, cost.parameters) == (7_942_963_200, 1_494_312_960)
    # 10^12 / 4,194,304 = 238,418.6 steps
    assert (cost.steps, cost.tokens) == (238_419, 238_419 * 4_194_304)
    # 12 bytes a parameter; 256 streams of 257 places of 8 bytes; counts below
    assert cost.checkpoint_bytes == 12 * 1_494_312_960 + 256 * 257 * 8 + cost.counts_bytes
    assert cost.shard_bytes == 4 * 627_000_000_000


def test_hours_by_hand():
    experiment = small()
    # weights in products: 2 x (8 x (16 + 8) + 3 x 8 x 12) + 160 = 1120; 6 x 1120 + 12 x 2 x 8 x 32 = 12,864 a token
    plain = cost_of(experiment, peak_flops=1e6, utilisation=0.5)
    assert plain.hours == pytest.approx(12_864 * 768 / 0.5e6 / 3600)
    again = cost_of(small(recompute=True, devices=3), peak_flops=1e6, utilisation=0.5)
    assert again.hours == pytest.approx(plain.hours * 4 / 3 / 3)
    assert cost_of(experiment, peak_flops=None, utilisation=0.5).hours is None


@pytest.mark.parametrize("reach", [1, 64, 5000])
def test_the_bytes_of_counts_are_those_of_the_file(tmp_path, reach):
    for weights in (None, np.ones(reach)):
        RunFolder(tmp_path).write_counts(PositionCounts(reach, weights=weights))
        assert counts_bytes(reach, weighs=weights is not None) == (tmp_path / "counts.npz").stat().st_size


def test_shards_are_the_corpus_where_it_is_known_and_what_is_trained_on_otherwise():
    upsampled = load_experiment(ROOT / "configs/tiny_2k.yaml", {"data.upsample.tokens": 10**9}).data
    assert shard_tokens_of(upsampled, 5)[0] == 628 * 10**9
    tokens, source = shard_tokens_of(small().data, 5)
    assert (tokens, source.split(";")[0]) == (5, "train.tokens")
    assert cost_of(small(), peak_flops=None, utilisation=1.0).shard_bytes == 2 * 768  # uint16 below 65,536 ids
