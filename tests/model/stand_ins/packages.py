"""Stand-ins for variable-length functions of torch, flash-attn and xformers, differentiated by autograd.

Sources: torch/nn/attention/varlen.py of 2.11, 2.12 and 2.13; flash-attn 2.8, flash_attn/flash_attn_interface.py;
xformers 0.0.35, ops/fmha/__init__.py and ops/fmha/attn_bias.py.
"""

from dataclasses import dataclass

import torch

from tests.model.stand_ins.definition import (
    HALF,
    check,
    check_flash,
    check_spans,
    dense,
    spans,
    visible,
    window_of,
    without,
)


def packed_attention(q, k, v, cu_q, cu_k, causal, scale=None):
    """Attend span by span; return (T, N, H) and (N, T)."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    parts = [
        dense(q[a], k[b], v[b], visible(a.stop - a.start, b.stop - b.start, causal), scale)
        for a, b in spans(cu_q, cu_k)
    ]
    return torch.cat([out for out, _ in parts]).to(q.dtype), torch.cat([lse for _, lse in parts], dim=1).float()


def varlen_attn_2_11(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)
):
    """Stand in for varlen_attn as torch 2.11 has it: as many key-value heads as query heads."""
    check_flash(query, key, value)
    check_spans(cu_seq_q, cu_seq_k, query, key, max_q, max_k)
    check(query.shape[1] == key.shape[1], "shapes are documented as (T, H, D)")
    causal, left = window_of(False, *window_size)
    assert left is None, "no stand-in for sliding windows"
    out, lse = packed_attention(query, key, value, cu_seq_q, cu_seq_k, causal, scale)
    return (out, lse.detach()) if return_aux is not None and return_aux.lse else out


def varlen_attn_2_12(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1),
    enable_gqa=False, seqused_k=None, block_table=None, num_splits=None,
):  # fmt: skip
    """Stand in for varlen_attn as torch 2.12 and 2.13 have it: grouped heads where asked for."""
    check_flash(query, key, value)
    check_spans(cu_seq_q, cu_seq_k, query, key, max_q, max_k)
    without(seqused_k, block_table)
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError("Expect query and key/value to have the same number of heads. Try setting enable_gqa=True")
    causal, left = window_of(False, *window_size)
    assert left is None, "no stand-in for sliding windows"
    out, lse = packed_attention(query, key, value, cu_seq_q, cu_seq_k, causal, scale)
    return (out, lse.detach()) if return_aux is not None and return_aux.lse else out


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
    block_table=None,
):  # fmt: skip
    """Stand in for flash-attn 2.8's function, which pads heads to a multiple of 8 itself."""
    check_flash(*(torch.nn.functional.pad(x, (0, -x.shape[-1] % 8)) for x in (q, k, v)))
    check_spans(cu_seqlens_q, cu_seqlens_k, q, k, max_seqlen_q, max_seqlen_k)
    without(dropout_p, softcap, return_attn_probs, alibi_slopes, block_table)
    causal, left = window_of(causal, *window_size)
    assert left is None, "no stand-in for sliding windows"
    return packed_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, softmax_scale)[0]


@dataclass
class BlockDiagonalCausalFromBottomRightMask:
    """Stand in for xformers' bias."""

    q_lengths: list[int]
    k_lengths: list[int]

    @classmethod
    def from_seqlens(cls, q_seqlen, kv_seqlen=None, *, device=None):
        """Build it from lengths on the host."""
        kv_seqlen = q_seqlen if kv_seqlen is None else kv_seqlen
        assert len(q_seqlen) == len(kv_seqlen)
        for number, (queries, keys) in enumerate(zip(q_seqlen, kv_seqlen, strict=True)):
            if keys < queries:
                raise ValueError(f"Block #{number} has num_keys={keys} and num_queries={queries}.")
        return cls(list(q_seqlen), list(kv_seqlen))


def memory_efficient_attention(
    query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None
):  # fmt: skip
    """Stand in for xformers' function: (1, T, N, H), as many key-value heads as query heads."""
    if query.dim() != 4 or key.shape != value.shape or query.shape[2] != key.shape[2]:
        raise ValueError("Incompatible shapes for attention inputs")
    if query.dtype not in (*HALF, torch.float32) or not query.dtype == key.dtype == value.dtype:
        raise ValueError("Query/Key/Value should either all have the same dtype")
    if any(x.stride(-1) != 1 for x in (query, key, value)) or query.shape[-1] % 8:
        raise NotImplementedError("No operator found for `memory_efficient_attention_forward` with inputs")
    assert isinstance(attn_bias, BlockDiagonalCausalFromBottomRightMask), "no stand-in for other biases"
    without(p, op, output_dtype)
    assert (sum(attn_bias.q_lengths), sum(attn_bias.k_lengths)) == (query.shape[1], key.shape[1])
    ends = [torch.tensor([0, *lengths]).cumsum(0) for lengths in (attn_bias.q_lengths, attn_bias.k_lengths)]
    return packed_attention(query[0], key[0], value[0], *ends, True, scale)[0][None]
