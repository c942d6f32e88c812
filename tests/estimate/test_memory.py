"""Memory on fake tensors against counts by hand and against what a real run keeps."""

import dataclasses
import functools

import pytest

from lab.masks import Anchor
from lab.model.config import DecoderConfig
from lab.positions.methods import PositionConfig
from lab.positions.string import String
from lab.train.dry_run import measure_memory
from tests.estimate.small import small

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
# Kept for the backward pass, float32 numbers for each token and block: norm's input 8 and scale 1, its output 8, q 8,
#   k 4, v 4, attention's output 8, log-sum-exps 2, second norm's input 8, scale 1 and output 8, gate, its silu, up and
#   their product 4 x 12: 108. Two blocks, the last norm's 8 + 1, the loss's gradient 8, cos and sin 2 x 2: 237 numbers
#   and token and target of 8 bytes, 964 bytes. And once: the head's gradient 160 numbers and the loss: 644 bytes.
PER_TOKEN, ONCE = 964, 644


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


@pytest.mark.parametrize("tokens", [128, 384])
def test_activations_equal_a_count_by_hand_and_grow_with_the_pack(tokens):
    assert measured(micro_batch_tokens=tokens).kept == PER_TOKEN * tokens + ONCE


def test_recompute_keeps_a_residual_stream_for_each_block():
    # of a block's 108 numbers its input of 8 is left: 16 + 9 + 8 + 4 = 37; token and target of 8 bytes each: 164 bytes
    # a token. Once: the head's gradient and the loss
    assert measured(recompute=True).kept == 164 * 128 + 160 * 4 + 4


def test_ranks_that_share_a_pack_keep_their_part_of_it():
    # K 2, so k and v are 8 each; attention's 8 outputs are exchanged for 8 to project: 124 of a block's numbers for
    # each of 64 tokens, 265 in all. For all 128 tokens 4 numbers of cos and sin, token and target: 32 bytes
    model = DecoderConfig(8, 2, 2, 2, 12, 20, False)
    alone = small(strategy="fsdp", devices=2)
    train = dataclasses.replace(alone.train, context_parallel=2)
    assert measure_memory(dataclasses.replace(alone, model=model, train=train)).kept == 265 * 4 * 64 + 32 * 128 + ONCE


def test_the_peak_has_the_gradients_only_where_they_are_kept_between_packs():
    once = {"batch_tokens": 128, "tokens": 128}
    several, one = measured(), measured(**once)
    assert several.peak["gradients"] == 5280
    assert one.peak["gradients"] < 5280  # set to None after a step, they come back one by one
    assert measured(strategy="ddp", devices=3, batch_tokens=384).peak["gradients"] == 5280  # DDP's buckets


def test_masks_hold_no_square_of_the_window():
    causal, masked = measured(), measured(mask=Anchor(), mode="concatenated")
    # an anchor adds gathered keys and values, 2 x 4 numbers for each token and block, and one more key a window
    assert causal.kept <= masked.kept <= causal.kept + 2 * 2 * 4 * 4 * (128 + 4) + 16 * 128


def test_a_distance_method_holds_no_square_of_the_window():
    string = PositionConfig(distance=String(shift=24, window=8))
    plain, banded = measured().kept, measure_memory(dataclasses.replace(small(), position=string)).kept
    # STRING's second band adds rotations for other ids, cos and sin of 2 numbers, and may keep keys of 4 for it; its
    # autograd function keeps q before rotation and makes no copy with padding
    assert plain / 2 < banded < plain * 1.5
