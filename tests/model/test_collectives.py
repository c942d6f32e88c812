"""Collectives of a step under FSDP2, counted on gloo; its gradients against those of one process."""

import collections
import dataclasses
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lab.model.attention.segments import ContextGroup, Segments
from lab.model.decoder import Decoder, DecoderConfig
from lab.model.sharding import Sharding, accumulating, build
from lab.positions import distance, frequencies
from tests.ranks import meet

CFG = DecoderConfig(d_model=16, n_layers=2, n_heads=2, n_kv_heads=2, d_ff=23, vocab_size=51, tie_embeddings=False)
TIED = dataclasses.replace(CFG, tie_embeddings=True)
METHODS = {"frequencies": frequencies("rope", head_dim=8, theta=1e4), "distance": distance("plain")}
SEED, TOKENS, PACKS = 3, 8, 3  # packs are the micro-batches of a step
TOLERANCE = 1e-6  # of the largest gradient: sums in another order
GATHER, SCATTER, REDUCE = "_allgather_base_", "_reduce_scatter_base_", "allreduce_"


class Collectives(TorchDispatchMode):
    """Counts the calls of c10d, by name."""

    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        if call.namespace == "c10d":
            self.counts[call.overloadpacket.__name__] += 1
        return call(*args, **(kwargs or {}))


def pack(rank, number):
    return torch.randint(51, (1, TOKENS), generator=torch.Generator().manual_seed(100 * rank + number))


def loss_of(decoder, tokens, context=None):
    return decoder(tokens, segments=Segments.from_lengths([5, 3], TOKENS), targets=tokens, context=context)


def one_step(cfg, sharding, packs, context_parallel=1):
    """Run the micro-batches of a step on this rank; return its collectives and gradients."""
    meet()
    world = torch.distributed.get_world_size()
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world,))
    decoder = build(lambda seed: Decoder(cfg, seed=seed, **METHODS), SEED, None, mesh=mesh, sharding=sharding)
    context = ContextGroup.create(context_parallel)
    stream = torch.distributed.get_rank() // context_parallel
    with Collectives() as collectives:
        for number in range(packs):
            with nullcontext() if number + 1 == packs or not sharding.whole else accumulating(decoder):
                loss_of(decoder, pack(stream, number), context).backward()
    gradients = {name: parameter.grad.full_tensor() for name, parameter in decoder.named_parameters()}
    return dict(collectives.counts), gradients


def expected_gradients(cfg, streams, packs):
    """Average the gradient over ranks in one process, summed over packs."""
    decoder = Decoder(cfg, seed=SEED)
    for stream in range(streams):
        for number in range(packs):
            (loss_of(decoder, pack(stream, number)) / streams).backward()
    return {name: parameter.grad for name, parameter in decoder.named_parameters()}


# Groups: 2 blocks, embedding, head and the last norm, 5; tied, the last three are one, 3. Each is gathered once and its
# gradient reduced once in a step where both stay whole; otherwise in each of 3 micro-batches, and the blocks are
# gathered once more for the backward pass: 3 x (5 + 2) and 3 x 5; tied 3 x (3 + 2) and 3 x 3.
# 2 x 2 ranks: each group of two gathers and reduces as two ranks do, and reduced gradients are averaged over groups.
# Where every rank has all weights (4 x 1), nothing is gathered or scattered.
CASES = {  # number of ranks, model, sharding, micro-batches, ranks that share a pack, collectives
    "whole": (2, CFG, Sharding(whole=True), PACKS, 1, {GATHER: 5, SCATTER: 5}),
    "sharded": (2, CFG, Sharding(), PACKS, 1, {GATHER: 21, SCATTER: 15}),
    "whole-tied": (2, TIED, Sharding(whole=True), PACKS, 1, {GATHER: 3, SCATTER: 3}),
    "sharded-tied": (2, TIED, Sharding(), PACKS, 1, {GATHER: 15, SCATTER: 9}),
    "one-pack": (2, CFG, Sharding(whole=True), 1, 1, {GATHER: 5, SCATTER: 5}),
    "groups-whole": (4, CFG, Sharding(degree=2, whole=True), PACKS, 1, {GATHER: 5, SCATTER: 5, REDUCE: 5}),
    "groups-sharded": (4, CFG, Sharding(degree=2), PACKS, 1, {GATHER: 21, SCATTER: 15, REDUCE: 15}),
    "replicas": (4, CFG, Sharding(degree=1, whole=True), PACKS, 1, {REDUCE: 5}),
    "shared-packs": (4, CFG, Sharding(degree=2, whole=True), PACKS, 2, {GATHER: 5, SCATTER: 5, REDUCE: 5}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_step_makes_so_many_collectives_and_the_gradient_of_one_process(ranks, case):
    world, cfg, sharding, packs, context_parallel, expected = case
    whole = expected_gradients(cfg, world // context_parallel, packs)
    largest = max(gradient.abs().max() for gradient in whole.values()) / context_parallel
    for counts, gradients in ranks(world).run(one_step, cfg, sharding, packs, context_parallel):
        assert gradients.keys() == whole.keys()
        for name, gradient in whole.items():  # each rank has a part of the loss
            assert (gradients[name] - gradient / context_parallel).abs().max() <= TOLERANCE * largest, name
        assert counts == expected if context_parallel == 1 else counts.items() >= expected.items()
