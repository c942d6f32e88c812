"""The change in attention under a shift of all positions, which is zero in exact arithmetic.

    D(X, d1, d2) = sum over layers, heads and keys j of n_j sum over queries i of |ATTN_ij(d1) - ATTN_ij(d2)|    (Eq. 4)
    D_logit      = 1/T sum over layers, heads and queries i of |A_i0(d1) - A_i0(d2)|                            (Eq. 5)

ATTN(d) are the attention weights and A(d) the logits, as softmax is given them, when a text of T tokens is at the
positions d .. d + T - 1; n_j = 1 / (T - j), keys counted from 0, is one over the queries that see key j. d2 is
REFERENCE. Without the sum over keys, D is the profile by token.

Where bfloat16 rounds:

    fp32        nowhere: weights, activations, rotated queries and keys, logits, softmax are float32
    bf16        queries and keys are rotated in float32 and then rounded to bfloat16; their products are added up in
                float32, as flash attention does; the softmax is float32. All else is as in fp32: the same un-rotated
                queries and keys, of an unshifted float32 forward pass, serve all shifts and both arithmetics
    bf16_model  weights and activations are bfloat16 too, and each shift has its own forward pass, so that layers pass
                differences on; between the layers a GPU's kernels round as in bf16, a CPU attends in float32

Source: arXiv:2411.13476, section 2. It leaves 1 / sqrt(head_dim) out of its notation; A here has it. Its
random weights are torch's kaiming_uniform_, ours what the lab's training starts from, of about the same size. Its
curves are of a whole model in bfloat16 on a GPU, as bf16_model is there; bf16 leaves nothing but RoPE to explain them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lab.model.attention.inspection import BLOCK_LOGITS, LayerInputs, LayerLogits, layer_inputs
from lab.model.decoder import Decoder

REFERENCE = 16  # d2 in tokens (section 2.2)
SHIFTS = (0, 2, 4, 6, 8, 10, 12, 14, 15, 17, 18, 20, 22, 50, 100, 200, 500, 1000, 2000)  # d1 (section 2.2)
SAMPLED = 256  # positions whose pairs are compared to decide whether a method depends on distances alone
FIRST_KEY = slice(0, 1)


@dataclass(frozen=True)
class Arithmetic:
    """Where rounding happens: of the rotated queries and keys, and in the whole model."""

    rounding: torch.dtype | None = None
    whole: bool = False


ARITHMETICS = {
    "fp32": Arithmetic(),
    "bf16": Arithmetic(torch.bfloat16),
    "bf16_model": Arithmetic(torch.bfloat16, whole=True),
}


@torch.no_grad()
def key_differences(
    decoder: Decoder, tokens: Tensor, shifts: Sequence[int], arithmetic: Arithmetic, *, most: int = BLOCK_LOGITS
) -> Tensor:
    """Compute the terms of D by key for every shift against REFERENCE; D is their sum.

    For an arithmetic of the whole model the decoder is given in bfloat16. At most `most` logits of a shift are held.

    Shapes: tokens int64 (B, T); returns float64 (B, len(shifts), T).
    """
    batch, n_tokens = tokens.shape
    total = torch.zeros(batch, len(shifts), n_tokens, dtype=torch.float64, device=tokens.device)
    for inputs in at_shifts(decoder, tokens, [REFERENCE, *shifts], arithmetic):
        reference, *others = [LayerLogits(one, arithmetic.rounding) for one in inputs]
        for part in reference.blocks(most):
            weights = reference.block(part).softmax(-1)
            for number, other in enumerate(others):
                gap = (other.block(part).softmax(-1) - weights).abs()
                total[:, number, : part.stop] += gap.sum((1, 2), dtype=torch.float64)
    queries_seeing = torch.arange(n_tokens, 0, -1, device=tokens.device)
    return total / queries_seeing


@torch.no_grad()
def first_logit_difference(decoder: Decoder, tokens: Tensor, shift: int, arithmetic: Arithmetic) -> Tensor:
    """Compute D_logit of a shift against REFERENCE.

    Shapes: tokens int64 (B, T); returns float64 (B,).
    """
    batch, n_tokens = tokens.shape
    total = torch.zeros(batch, dtype=torch.float64, device=tokens.device)
    for inputs in at_shifts(decoder, tokens, [REFERENCE, shift], arithmetic):
        a, b = (LayerLogits(one, arithmetic.rounding).block(slice(0, n_tokens), FIRST_KEY) for one in inputs)
        total += (a - b).abs().sum((1, 2, 3), dtype=torch.float64)
    return total / n_tokens


def rebuilt(decoder: Decoder, seed: int | None) -> Decoder:
    """Make another decoder of the same config and position methods, its weights drawn with a seed or left to fill."""
    other = Decoder(
        decoder.cfg,
        frequencies=decoder.frequencies,
        distance=decoder.distance,
        backend=decoder.backend,
        seed=seed,
    )
    return other.to(decoder.embedding.weight.device).eval()


def in_bfloat16(decoder: Decoder) -> Decoder:
    """Copy a decoder with weights rounded to bfloat16, which makes its activations bfloat16 as well."""
    other = rebuilt(decoder, seed=None)
    other.load_state_dict(decoder.state_dict())
    return other.bfloat16()


def at_shifts(
    decoder: Decoder, tokens: Tensor, shifts: Sequence[int], arithmetic: Arithmetic
) -> Iterator[Sequence[LayerInputs]]:
    """Yield for each layer its inputs at every shift: of forward passes of their own, or of one that is not shifted."""
    if arithmetic.whole:
        yield from zip(*(layer_inputs(decoder, tokens, shift=shift) for shift in shifts), strict=True)
        return
    for inputs in layer_inputs(decoder, tokens):
        yield [inputs.shifted(shift) for shift in shifts]


def depends_on_positions(decoder: Decoder, n_tokens: int, shifts: Sequence[int]) -> bool:
    """Return whether a shift changes attention in exact arithmetic too, where D would measure the position method."""
    ids = torch.linspace(0, n_tokens - 1, min(n_tokens, SAMPLED)).round().long()
    distance, layer = decoder.distance, decoder.cfg.n_layers - 1

    def seen(shift: int) -> Tensor:
        rel_pos = torch.where(ids[:, None] >= ids, distance.rel_pos(ids + shift, ids + shift), 0.0)
        factors = [distance.logit_factor(ids + shift), decoder.frequencies.logit_factor(ids + shift, layer)]
        return torch.cat([rel_pos, torch.stack(factors, dim=1)], dim=1)

    return any(not torch.equal(seen(shift), seen(0)) for shift in (REFERENCE, *shifts))
