"""Step times against a count by hand of bytes, hops and operations."""

import pytest

from lab.config import load_experiment
from lab.estimate.command import estimate
from lab.estimate.options import DryRun
from lab.estimate.report import accumulation
from lab.estimate.scaling import all_reduce, scaling_table, step_of
from tests.estimate.small import small
from tests.forked import ROOT

# 1,494,312,960 weights in 22 blocks, embedding, head and last norm, 25 groups; 7,942,963,200 FLOPs a token at 2K and
# 8,496,611,328 at 4K. At half of an A100's 312 TFLOP/s 262,144 tokens, a sixteenth of 4,194,304, take 13.3474 s at 2K.
FLOPS = {"tiny_2k": 7_942_963_200, "tiny_4k": 8_496_611_328}
# 1,024 GPUs, 128 nodes: 4,096 tokens take 208.553 ms, 69.518 forward, 139.036 backward.
#   all: 896 hops of 3.4 us and 127 of 14 us are 4.8244 ms, 120.61 for 25 groups. Through 8 x 25 GB/s go 2.98863 GB
#   x 1023/1024 in 14.929 ms and twice that in 29.857 ms: 135.539 - 69.518 + 150.467 - 139.036 = 77.452 ms exposed
#   nodes: 7/8 of 2.98863 GB at 300 GB/s are 8.717 ms, 25 x 7 hops 0.595; of the double 17.434 + 0.595;
#   then 0.74716 GB
#   x 2 x 127/128 at 25 GB/s are 59.306 ms, and 25 x 14 hops of 14 us 4.9 ms: 82.235 in all, less than the backward pass
STEPS = [
    pytest.param(16, False, 13.34744, 0.0, "compute", id="two-nodes"),
    pytest.param(1024, False, 0.208554, 0.077452, "latency", id="all"),
    pytest.param(1024, True, 0.208554, 0.0, "compute", id="inside-nodes"),
]


@pytest.mark.parametrize(("gpus", "hybrid", "compute", "exposed", "limit"), STEPS)
def test_a_step_equals_a_count_by_hand(gpus, hybrid, compute, exposed, limit):
    experiment = load_experiment(ROOT / "configs" / "tiny_2k.yaml")
    step = step_of(experiment, gpus, hybrid=hybrid, gpu="A100", utilisation=0.5)
    assert step.compute == pytest.approx(compute, rel=1e-5)
    assert step.exposed == pytest.approx(exposed, abs=2e-6)
    assert step.limit == limit


@pytest.mark.parametrize("name", FLOPS)
def test_flops_per_token_are_causal(name):
    experiment = load_experiment(ROOT / "configs" / f"{name}.yaml")
    assert experiment.model.flops_per_token_causal(experiment.data.window) == FLOPS[name]


def test_a_sum_over_nodes_takes_the_tree_from_four_nodes_on():
    # 25 GB x 2 x (m - 1) / m at 25 GB/s; 2 x 1 hops of 14 us in a ring of two, 2 x 2 in a tree of four, 2 x 7 of 128
    for nodes, bandwidth, hops in ((1, 0.0, 0), (2, 1.0, 2), (4, 1.5, 4), (128, 2 * 127 / 128, 14)):
        found = all_reduce(25e9, nodes, (300e9, 25e9), groups=10)
        assert found.bandwidth == pytest.approx(bandwidth)
        assert found.latency == pytest.approx(10 * hops * 14e-6)


def test_short_packs_are_bound_by_bandwidth_inside_a_node():
    # 8 GPUs of 512 tokens: 26.0692 ms, 8.6897 forward and 17.3795 backward; NVLink gathers in 8.7168 + 0.595 and
    # reduces in 17.4337 + 0.595: 0.6221 + 0.6492 ms remain
    words = {"train.devices": 1, "train.nodes": 1, "train.batch_tokens": 4096, "train.micro_batch_tokens": 4096}
    experiment = load_experiment(ROOT / "configs" / "tiny_2k.yaml", words)
    step = step_of(experiment, 8, hybrid=True, gpu="A100", utilisation=0.5)
    assert step.exposed == pytest.approx(0.0012713, abs=1e-7)
    assert step.limit == "bandwidth"


def test_a_dry_run_prints_the_table_and_the_limits_of_the_batch():
    experiment = small(strategy="fsdp", devices=2, precision="bf16", accelerator="gpu")
    text = estimate(experiment, DryRun(gpus=(2, 16)))
    table = scaling_table(experiment, (2, 16), gpu="A100", utilisation=0.66).splitlines()
    assert text.splitlines()[-3].split() == table[-3].split()
    # 768 tokens in packs of 128 on 2 processes; 6 packs are enough for 6
    words = "3 of 128 tokens on each process; weights gathered, gradients exchanged once a step; at most 6 processes"
    assert words in text
    assert "at least 256 tokens a step" in text
    assert "process; gradients exchanged once a step; " in accumulation(small(strategy="ddp", devices=2))
    freed = small(strategy="fsdp", devices=2, reshard_after="block")
    assert "; weights gathered, gradients exchanged for each; " in accumulation(freed)
