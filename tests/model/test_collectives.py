"""Sharded models: collectives of a step, counted on gloo; weights, dtypes and gradients against one process's."""

import collections
import dataclasses
from contextlib import nullcontext
from unittest import mock

import pytest
import torch

from lab.core.errors import ConfigError
from lab.model.attention.segments import ContextGroup, Segments
from lab.model.decoder import Decoder, DecoderConfig
from lab.model.generate import greedy
from lab.model.sharding import Sharding, accumulating, build
from lab.positions import distance, frequencies
from tests.fits import NO_PROBES, records
from tests.model.conftest import Watch
from tests.ranks import meet, train

CFG = DecoderConfig(d_model=16, n_layers=2, n_heads=2, n_kv_heads=2, d_ff=23, vocab_size=51, tie_embeddings=False)
TIED = dataclasses.replace(CFG, tie_embeddings=True)
METHODS = {"frequencies": frequencies("rope", head_dim=8, theta=1e4), "distance": distance("plain")}
SEED, TOKENS, PACKS = 3, 8, 3  # packs are the micro-batches of a step
TOLERANCE = 1e-6  # of the largest gradient: sums in another order
BF16_TOLERANCE = 2e-2  # nats: the residual stream is float32 in one process and bf16 under FSDP
GATHER, SCATTER, REDUCE = "_allgather_base_", "_reduce_scatter_base_", "allreduce_"


def make(cfg, seed):
    return Decoder(cfg, seed=seed, **METHODS)


def sharded(cfg, start=None, sharding=Sharding()):
    meet()
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return build(lambda seed: make(cfg, seed), SEED, start, mesh=mesh, sharding=sharding)


def pack(rank, number):
    return torch.randint(51, (1, TOKENS), generator=torch.Generator().manual_seed(100 * rank + number))


def loss_of(decoder, tokens, context=None):
    return decoder(tokens, segments=Segments.from_lengths([5, 3], TOKENS), targets=tokens, context=context)


def one_step(cfg, sharding, packs, context_parallel=1):
    """Run the micro-batches of a step on this rank; return its collectives and gradients."""
    decoder = sharded(cfg, sharding=sharding)
    context = ContextGroup.create(context_parallel)
    stream = torch.distributed.get_rank() // context_parallel
    counts = collections.Counter()

    def note(call, arguments, out):
        if call.namespace == "c10d":
            counts[call.overloadpacket.__name__] += 1

    with Watch(note):
        for number in range(packs):
            with nullcontext() if number + 1 == packs or not sharding.whole else accumulating(decoder):
                loss_of(decoder, pack(stream, number), context).backward()
    gradients = {name: parameter.grad.full_tensor() for name, parameter in decoder.named_parameters()}
    return dict(counts), gradients


def expected_gradients(cfg, streams, packs):
    """Average the gradient over ranks in one process, summed over packs."""
    decoder = make(cfg, SEED)
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


def double(decoder):
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(2)


def fail(decoder):
    raise ConfigError("start.path=x: is no model")


def whole_weights(cfg, start):
    """Gather a sharded model's weights; tell how many times this rank built one, and whether ties held."""
    was = Decoder.reset_parameters
    with mock.patch.object(Decoder, "reset_parameters", autospec=True, side_effect=was) as drawn:
        decoder = sharded(cfg, start)
    weights = {name: tensor.full_tensor() for name, tensor in decoder.state_dict().items()}
    return weights, drawn.call_count, decoder.head.weight is decoder.embedding.weight


@pytest.mark.parametrize("start", [None, double], ids=["seeded", "trained"])
@pytest.mark.parametrize("cfg", [CFG, TIED], ids=["untied", "tied"])
def test_a_sharded_model_has_the_weights_of_a_whole_one(ranks, cfg, start):
    expected = make(cfg, SEED)
    if start is not None:
        start(expected)
    for rank, (weights, built, tied) in enumerate(ranks(2).run(whole_weights, cfg, start)):
        assert weights.keys() == expected.state_dict().keys()
        assert all(torch.equal(weights[name], tensor) for name, tensor in expected.state_dict().items())
        assert built == (rank == 0), "only the first rank draws weights"
        assert tied == cfg.tie_embeddings


def fault_of(cfg, shards):
    meet()
    try:
        sharded(cfg, fail) if shards else build(lambda seed: make(cfg, seed), SEED, fail)
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize("shards", [False, True], ids=["ddp", "fsdp"])
def test_weights_that_cannot_be_read_are_one_error_in_every_rank(ranks, shards):
    assert ranks(2).run(fault_of, CFG, shards) == ["start.path=x: is no model"] * 2


def dtypes_in_blocks(cfg):
    """Run forward passes of a model sharded in bf16 and note, block by block, what arrives."""
    decoder = sharded(cfg, sharding=Sharding(torch.bfloat16))
    seen = []

    def note(block, arguments):
        x, layout, _ = arguments
        tables = {t.dtype for r in (*layout.q_rotations, *layout.k_rotations) for t in (r.cos_B1TH, r.sin_B1TH)}
        seen.append((x.dtype, block.attention.q.weight.dtype, tables, layout.frequencies.inv_freq.dtype, layout))

    for block in decoder.blocks:
        block.register_forward_pre_hook(note)
    tokens = torch.arange(8)[None]
    segments = Segments.from_lengths([5, 3], 8)
    loss = decoder(tokens, segments=segments, targets=tokens)
    loss.backward()
    grads = {parameter.grad.dtype for parameter in decoder.parameters()}
    greedy(decoder, tokens.repeat(2, 1), 3)
    passes = [seen[n : n + cfg.n_layers] for n in range(0, len(seen), cfg.n_layers)]
    one_layout = [all(row[-1] is rows[0][-1] for row in rows) for rows in passes[:1]]
    return loss.dtype, grads, {row[0] for row in seen}, {row[1] for row in seen}, [row[2:4] for row in seen], one_layout


@pytest.mark.parametrize("world", [1, 2])
def test_rotary_tables_stay_float32_under_fsdp_in_bf16(ranks, world):
    for loss, grads, hidden, weights, tables, one_layout in ranks(world).run(dtypes_in_blocks, CFG):
        assert (loss, grads) == (torch.float32, {torch.float32})
        assert (hidden, weights) == ({torch.bfloat16}, {torch.bfloat16})
        assert tables == [({torch.float32}, torch.float64)] * len(tables)
        assert len(tables) >= 2 * CFG.n_layers, "training and generation"
        assert one_layout == [True], "every block sees the same tables, not a copy"


@pytest.mark.parametrize("steps", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_fsdp_in_bf16_trains_as_one_process_in_bf16(ranks, tmp_path, steps):
    settings = {"run.folder": str(tmp_path), "data.folder": str(tmp_path / "shards"), **NO_PROBES}
    settings |= {"train.precision": "bf16", "train.tokens": 1024 * steps}
    ranks(1).run(train, settings | {"run.name": "autocast"})
    for name, world in (("one", 1), ("two", 2)):
        ranks(world).run(train, settings | {"run.name": name, "train.devices": world, "train.strategy": "fsdp"})
    autocast, one, two = ([r["loss"] for r in records(tmp_path / name)] for name in ("autocast", "one", "two"))
    assert len(autocast) == len(one) == len(two) == steps
    assert max(abs(a - b) for a, b in zip(autocast, two)) < BF16_TOLERANCE
    assert one[0] == pytest.approx(two[0], abs=1e-5), "the same weights, in sums of another order"
    assert max(abs(a - b) for a, b in zip(one, two)) < BF16_TOLERANCE
