"""What train.strategy resolves to, and what its processes share."""

import pytest

from lab.config import TrainConfig

GIB = 2**30


@pytest.mark.parametrize(
    ("settings", "on_gpu", "expected"),
    [
        ({}, True, "fsdp"),  # bf16
        ({}, False, "single"),
        ({"precision": "bf16"}, False, "single"),
        ({"precision": "fp32"}, True, "single"),
        ({"devices": 2}, True, "fsdp"),
        ({"devices": 2}, False, "ddp"),
        ({"strategy": "single"}, True, "single"),
        ({"strategy": "ddp", "devices": 2}, True, "ddp"),
    ],
)
def test_auto_is_fsdp_in_bf16_on_gpus_only(settings, on_gpu, expected):
    assert TrainConfig(**{"batch_tokens": 4096} | settings).resolved_strategy(on_gpu) == expected


@pytest.mark.parametrize(
    ("devices", "nodes", "expected"),
    [(1, 1, 1), (8, 2, 16), (8, 7, 56), (8, 8, 8), (4, 256, 4)],
)
def test_weights_are_shared_inside_nodes_from_64_processes_on(devices, nodes, expected):
    batch = {"batch_tokens": 2048 * devices * nodes, "strategy": "fsdp"}
    assert TrainConfig(devices=devices, nodes=nodes, **batch).sharded_over == expected


def test_weights_and_gradients_stay_whole_up_to_10_gib():
    # in bf16 2 bytes a weight, and 4 a gradient that is kept between two micro-batches and otherwise sharded
    one_pack, two_packs = (TrainConfig(devices=2, batch_tokens=2048 * n) for n in (2, 4))
    for train, each in ((one_pack, 2), (two_packs, 6)):
        assert train.keeps_whole(10 * GIB // each, bf16=True)
        assert not train.keeps_whole(10 * GIB // each + 1, bf16=True)
    assert TrainConfig(batch_tokens=4096).keeps_whole(5 * GIB, bf16=True)  # of one rank gradients are whole anyway
    assert two_packs.keeps_whole(10 * GIB // 8, bf16=False)
    assert not two_packs.keeps_whole(10 * GIB // 8 + 1, bf16=False)
