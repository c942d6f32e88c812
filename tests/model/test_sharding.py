"""Sharded models: the same weights as one process's, tables in float32 beside weights in bf16, built on any device."""

import pytest
import torch

from lab.core.errors import ConfigError
from lab.model.attention.segments import Segments
from lab.model.decoder import Decoder
from lab.model.generate import greedy
from lab.model.sharding import Sharding, build
from tests.fits import NO_PROBES, records
from tests.model.test_collectives import CFG, METHODS, SEED, TIED
from tests.ranks import meet, train

BF16_TOLERANCE = 2e-2  # nats: the residual stream is float32 in one process and bf16 under FSDP


def make(cfg, seed):
    return Decoder(cfg, seed=seed, **METHODS)


def double(decoder):
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(2)


def fail(decoder):
    raise ConfigError("start.path=x: is no model")


def sharded(cfg, start=None, dtype=None):
    meet()
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return build(lambda seed: make(cfg, seed), SEED, start, mesh=mesh, sharding=Sharding(dtype))


def whole_weights(cfg, start):
    """Gather a sharded model's weights; tell how many times this rank built one, and whether ties held."""
    built = []
    original = Decoder.reset_parameters
    Decoder.reset_parameters = lambda self, generator: (built.append(1), original(self, generator))[1]
    try:
        decoder = sharded(cfg, start)
    finally:
        Decoder.reset_parameters = original
    weights = {name: tensor.full_tensor() for name, tensor in decoder.state_dict().items()}
    return weights, len(built), decoder.head.weight is decoder.embedding.weight


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
    decoder = sharded(cfg, dtype=torch.bfloat16)
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
    settings = {
        "run.folder": str(tmp_path),
        "data.folder": str(tmp_path / "shards"),
        "train.precision": "bf16",
        "train.tokens": 1024 * steps,
        **NO_PROBES,
    }
    ranks(1).run(train, settings | {"run.name": "autocast"})
    for name, world in (("one", 1), ("two", 2)):
        ranks(world).run(train, settings | {"run.name": name, "train.devices": world, "train.strategy": "fsdp"})
    autocast, one, two = ([r["loss"] for r in records(tmp_path / name)] for name in ("autocast", "one", "two"))
    assert len(autocast) == len(one) == len(two) == steps
    assert max(abs(a - b) for a, b in zip(autocast, two)) < BF16_TOLERANCE
    assert one[0] == pytest.approx(two[0], abs=1e-5), "the same weights, in sums of another order"
    assert max(abs(a - b) for a, b in zip(one, two)) < BF16_TOLERANCE
