"""Probes of a sharded model: each weight is gathered once, and no collective call depends on the tokens generated."""

import re
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from lab.model.gathering import allocate, fill
from lab.train.callbacks.probing import Probing
from tests.fits import folders_of, records
from tests.model.test_sharding import CFG, SEED, TIED, make, sharded
from tests.ranks import train

SETTINGS = {
    "train.devices": 2,
    "train.strategy": "fsdp",
    "train.tokens": 1024 * 5,
    "train.checkpoint_every_tokens": None,
    "probe.every_tokens": None,
    "probe.tests": 3,
    "probe.step": 64,
    "probe.max_length": 192,
    "probe.distance_tests": 3,
    "probe.distance_points": 2,
    "probe.loss_tokens": 2048,
}
CALLS = "gather|reduce|scatter|broadcast|alltoall|all_to_all|barrier|send|recv"
OBJECT = 2  # collective calls of all_gather_object: sizes, then bytes


class Collectives(TorchDispatchMode):
    """Counts the collective calls that this process makes."""

    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented
        self.n += "c10d" in func.namespace and re.search(CALLS, func.name()) is not None
        return func(*args, **(kwargs or {}))


def gathered(cfg, dtype):
    decoder = sharded(cfg, dtype=dtype)
    with Collectives() as counted:
        whole = allocate(lambda seed: make(cfg, seed), dtype, torch.device("cpu"))
        fill(whole, decoder)
    tied = whole.head.weight is whole.embedding.weight
    return dict(whole.named_parameters()), tied, counted.n


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cfg", [CFG, TIED], ids=["untied", "tied"])
def test_a_whole_copy_has_the_weights_of_one_process_by_a_gather_each(ranks, cfg, dtype):
    expected = dict(make(cfg, SEED).to(dtype).named_parameters())
    for weights, tied, gathers in ranks(2).run(gathered, cfg, dtype):
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
        assert tied == cfg.tie_embeddings
        assert gathers == len(expected)


def train_and_count(settings):
    """Train, and count a probe's collective calls, its forward passes, the sharded weights and the exchanges due."""
    measure, embed, found = Probing.measure, nn.Embedding.forward, {"passes": 0}

    def counting(probing, trainer, module, counts):
        before = [shard.to_local().clone() for shard in module.decoder.parameters()]
        with Collectives() as counted, patch.object(nn.Embedding, "forward", passing):
            result = measure(probing, trainer, module, counts)
        shards = list(module.decoder.parameters())
        found["kept"] = all(
            isinstance(shard, DTensor) and torch.equal(shard.to_local(), old) for shard, old in zip(shards, before)
        )
        found["calls"], found["weights"] = counted.n, len(shards)
        # room for the copy; cases, rows, stop of each length and distance; loss
        lengths, distances = (sum(kind in line for line in result.lines) for kind in ("length", "distance"))
        found["exchanges"] = 1 + 3 * (lengths + distances) + 1
        return result

    def passing(*arguments, **options):
        found["passes"] += 1
        return embed(*arguments, **options)

    with patch.object(Probing, "measure", counting):
        assert train(settings) == 0
    return found


def test_a_probe_gathers_once_however_many_tokens_it_generates(ranks, tmp_path):
    found = {}
    for budget in (40, 60):
        own = SETTINGS | folders_of(tmp_path, f"budget{budget}") | {"probe.answer_budget": budget}
        found[budget] = ranks(2).run(train_and_count, own)
        assert records(tmp_path / f"budget{budget}", "probes.jsonl")[-1].get("failed") is None
        for one in found[budget]:
            assert one["kept"], "the sharded weights are only read"
            assert one["calls"] == one["weights"] + OBJECT * one["exchanges"]
    for short, long in zip(found[40], found[60]):
        assert (short["calls"], short["exchanges"]) == (long["calls"], long["exchanges"])
        assert short["passes"] != long["passes"]
