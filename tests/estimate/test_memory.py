"""The closed form of memory against counts by hand and against what autograd saves on this CPU."""

import dataclasses
import functools

import pytest
import torch

from lab.config import load_experiment
from lab.loading import decoder_builder
from lab.model.attention.segments import Segments
from lab.model.config import DecoderConfig, LayersConfig
from lab.positions.dca import Dca
from lab.positions.methods import PositionConfig
from lab.positions.self_extend import SelfExtend
from lab.positions.string import String
from lab.train.memory import measure_memory
from tests.estimate.small import small
from tests.forked import ROOT

# A block: q 8x8, k 4x8, v 4x8, out 8x8, gate 12x8, up 12x8, out 8x12, two norms of 8:
#   64 + 32 + 32 + 64 + 96 + 96 + 96 + 16 = 496. Two blocks, embedding and head 20x8 each, norm 8:
#   992 + 160 + 160 + 8 = 1320 parameters of 4 bytes. AdamW: two moments and a step of 4 bytes for each of
#   2 x 9 + 3 = 21 tensors, tied 20.
WHOLE = {"parameters": 5280, "optimizer": 2 * 5280 + 21 * 4}
# FSDP2 gives each of 3 ranks ceil(rows / 3) rows: q 3x8, k 2x8, v 2x8, out 3x8, gate 4x8, up 4x8, out 3x12, norms
#   3 + 3: 24 + 16 + 16 + 24 + 32 + 32 + 36 + 6 = 186. Embedding and head 7x8, norm 3: 2 x 186 + 56 + 56 + 3 = 487;
#   tied 431.
THIRD = {"parameters": 1948, "optimizer": 2 * 1948 + 21 * 4}
THIRD_TIED = {"parameters": 1724, "optimizer": 2 * 1724 + 20 * 4}
# Kept for the backward pass on a GPU, float32 numbers for each token and block: norm's input 8 and scale 1, its output
#   8, q 8, k 4, v 4, attention's output 8, log-sum-exps 2, second norm's input 8, scale 1 and output 8, gate, its silu,
#   up and their product 4 x 12: 108. Two blocks, the last norm's 8 + 1, the loss's gradient 8, cos and sin 2 x 2: 237
#   numbers, 948 bytes. Compiled, no silu: 2 x 12 numbers less. Recomputed, of a block's numbers its input of 8 is left:
#   16 + 9 + 8 = 33. And once: the head's gradient, 160 numbers.
PER_TOKEN, ONCE = 948, 640


@functools.cache
def measured(**settings):
    return measure_memory(small(**settings))


FSDP = {"strategy": "fsdp", "devices": 3}
COUNTED = {
    "one_process": ({}, WHOLE),
    "ddp": ({"strategy": "ddp", "devices": 3}, WHOLE),
    "fsdp_uneven": (FSDP, THIRD),
    "fsdp_tied": ({**FSDP, "tied": True, "precision": "bf16"}, THIRD_TIED),
}


@pytest.mark.parametrize(("settings", "expected"), COUNTED.values(), ids=COUNTED)
def test_parameters_and_optimizer_equal_a_count_by_hand(settings, expected):
    peak = measured(**settings).peak
    assert {name: peak[name] for name in expected} == expected


def test_a_step_that_reduces_once_keeps_whole_weights_and_float32_gradients():
    # 2 ranks of 3 packs each: 1,320 weights of both ranks, of 2 bytes, and as many gradients, of 4
    peak = measured(strategy="fsdp", devices=2, precision="bf16").peak
    assert peak["gathered"] == 1320 * (2 + 4)
    assert peak["gradients"] == 0  # sharded ones appear at the end


KEPT = {
    "plain": ({"compile": False}, PER_TOKEN),
    "larger": ({"compile": False, "micro_batch_tokens": 384}, PER_TOKEN),
    "compiled": ({}, PER_TOKEN - 2 * 12 * 4),
    "recomputed": ({"recompute": True}, 33 * 4),
}


@pytest.mark.parametrize(("settings", "per_token"), KEPT.values(), ids=KEPT)
def test_activations_equal_a_count_by_hand_and_grow_with_the_pack(settings, per_token):
    assert measured(**settings).kept == per_token * settings.get("micro_batch_tokens", 128) + ONCE


def test_ranks_that_share_a_pack_keep_their_part_of_it():
    # K 2, so k and v are 8 each; attention's 8 outputs are exchanged for 8 to project: 124 of a block's numbers for
    # each of 64 tokens, 2 x 124 + 9 + 8 + 4 = 269 in all
    model = DecoderConfig(8, 2, 2, 2, 12, 20, False)
    alone = small(strategy="fsdp", devices=2, compile=False)
    train = dataclasses.replace(alone.train, context_parallel=2)
    assert measure_memory(dataclasses.replace(alone, model=model, train=train)).kept == 269 * 4 * 64 + ONCE


TINY_2K, TINY_4K, DEMO = (load_experiment(ROOT / f"configs/{name}.yaml") for name in ("tiny_2k", "tiny_4k", "cpu_demo"))
BF16 = {"precision": "bf16", "strategy": "fsdp"}
STRING = PositionConfig(distance=String(shift=24, window=8))
DUAL_CHUNK = PositionConfig(distance=Dca(chunk=16, train_len=64))
WINDOWS = LayersConfig(pattern=("window", "nope"), window=9)
BLOCKS = {  # a model's block, another setting of the model, the position methods, and how it trains
    "tiny_2k": (TINY_2K, {}, {}, BF16),
    "tiny_2k_autocast": (TINY_2K, {}, {}, {"precision": "bf16"}),
    "tiny_4k_dca": (TINY_4K, {}, {"position": DUAL_CHUNK}, BF16),
    "demo": (DEMO, {}, {}, {}),
    "demo_dca": (DEMO, {}, {"position": DUAL_CHUNK}, {}),
    "demo_norms": (DEMO, {"qkv": "norm"}, {}, {}),
    "demo_norms_bf16": (DEMO, {"qkv": "norm"}, {"position": STRING}, BF16),
    "demo_windows": (DEMO, {"layers": WINDOWS}, {}, {}),
    "demo_self_extend": (DEMO, {}, {"position": PositionConfig(distance=SelfExtend(group=4, window=8))}, {}),
    "demo_recomputed": (DEMO, {}, {}, {"recompute": True}),
    "demo_recomputed_autocast": (DEMO, {}, {}, {"precision": "bf16", "recompute": True}),
}


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "inductor"])
@pytest.mark.parametrize(("source", "model", "methods", "train"), BLOCKS.values(), ids=BLOCKS)
def test_tensors_on_a_cpu_are_those_that_autograd_saves(source, model, methods, train, compiled):
    cfg = dataclasses.replace(source.model, n_layers=2 if "layers" in model else 1, vocab_size=64, **model)
    run = dataclasses.replace(small(accelerator="cpu", compile=compiled, **train), model=cfg, **methods)
    compiler = "inductor" if compiled else None
    with torch.device("meta"):
        decoder = decoder_builder(run, backend="sdpa", recompute=run.train.recompute, compiler=compiler)(None)
    decoder.to_empty(device="cpu").to(torch.bfloat16 if train.get("strategy") else None)
    weights = {parameter.data.zero_().untyped_storage().data_ptr() for parameter in decoder.parameters()}
    saved = {}

    def note(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage  # which is not freed, so that no other gets its address
        return x

    ids = torch.zeros(1, 128, dtype=torch.int64)
    segments = Segments.from_lengths([64, 64], 128)
    torch._dynamo.reset()
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=run.train.bf16 and "strategy" not in train)
    with autocast, torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        decoder(ids, segments=segments, starts=(0, 0), targets=ids)
    counted = sum(storage.nbytes() for storage in saved.values())
    assert measure_memory(run).kept == pytest.approx(counted, rel=0.03)


def test_a_recomputed_block_keeps_its_casts_in_its_own_backward_pass_by_hand():
    # Bytes of a token under autocast: both blocks' inputs 2 x 32; in a block the norms' inputs 32 + 16, scales 8 and
    #   outputs 32, q 16, k and v 16, attention's output 16 and log-sum-exps 8, feed-forward 72: 216; the gradients of
    #   gate and up 48. And once: a block's 496 - 16 weights of 2 bytes.
    peak = measured(precision="bf16", strategy="single", recompute=True).peak
    assert peak["activations"] == (64 + 216 + 48) * 128 + 480 * 2


def test_the_peak_has_the_gradients_only_where_they_are_kept_between_packs():
    once = {"batch_tokens": 128, "tokens": 128}
    several, one = measured(), measured(**once)
    assert several.peak["gradients"] == 5280
    assert one.peak["gradients"] < 5280  # set to None after a step, they come back one by one
    assert measured(strategy="ddp", devices=3, batch_tokens=384).peak["gradients"] == 5280  # DDP's buckets


@pytest.mark.parametrize(("settings", "gib"), [({}, 54.7), ({"micro_batch_tokens": 16_384}, 34.5)], ids=str)
def test_the_papers_run_takes_what_compiled_blocks_keep(settings, gib):
    # A token and block keeps, at D 2048, W 2048, K 256, F 5632 and 32 heads in bf16, two norms' inputs and outputs 4 D,
    # q and output 2 W, k and v 2 K, 3 F: 29,696 numbers of 2 bytes; scales and log-sum-exps 34 of 4: 59,528 bytes.
    # Times 22 x 32,768, 39.97 GiB. A chunk of 4,096 x 128,256 logits and their gradient 1.96, the head's gradient .98,
    # the last norm's input and output and their gradient .37. Weights and sums of gradients 1,494,312,960 x 6 bytes,
    # 8.35; 12 bytes a weight over 16 ranks 1.04; CUDA and NCCL 2. In all 54.67, and half of 40.34 less: 34.5.
    run = dataclasses.replace(TINY_2K, train=dataclasses.replace(TINY_2K.train, **settings))
    assert measure_memory(run).total / 2**30 + 2 == pytest.approx(gib, abs=0.05)
