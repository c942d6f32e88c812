"""Stand-ins for GPU kernels that run on a CPU, written from the documentation and source of the real ones.

Each takes what the real kernel takes, in its layout and dtypes, computes attention densely in float64 from the
definition, and refuses what the real one refuses. Where the real one would read or write the wrong memory in silence,
the stand-in raises AssertionError; memory that it leaves unwritten holds NaN. None of it is the lab's.

Sources: pytorch, aten/src/ATen/native/transformers/cuda (attention.cu, attention_backward.cu, flash_attn/flash_api.cpp,
mem_eff_attention/kernel_backward.h) and torch/nn/attention/varlen.py and flex_attention.py, 2.11 to 2.13; flash-attn
2.8, flash_attn/flash_attn_interface.py; xformers 0.0.35, ops/fmha.
"""

import contextlib
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

HALF = (torch.float16, torch.bfloat16)


def check(holds, message):
    """Refuse as TORCH_CHECK does."""
    if not holds:
        raise RuntimeError(message)


def visible(n_q, n_k, causal, top_left=False):
    """Draw the mask of one span; causal ones are aligned at the lower right corner unless told otherwise."""
    if not causal:
        return torch.ones(n_q, n_k, dtype=torch.bool)
    shift = 0 if top_left else n_k - n_q
    return torch.arange(n_k)[None, :] <= torch.arange(n_q)[:, None] + shift


def heads_of(k, n_heads):
    """Give every query head its key-value head: (T, K, H) to (T, N, H)."""
    return k[:, [head // (n_heads // k.shape[1]) for head in range(n_heads)]]


def dense(q, k, v, seen, scale):
    """Attend from (n, N, H) to (m, K, H) in float64; return (n, N, H) and the natural log-sum-exp (N, n)."""
    q, k, v = q.double(), heads_of(k, q.shape[1]).double(), heads_of(v, q.shape[1]).double()
    logits = torch.einsum("nhd,mhd->hnm", q, k) * scale
    logits = torch.where(seen, logits, -math.inf)
    top = logits.amax(-1, keepdim=True).detach().clamp(min=-1e300)
    powers = torch.exp(logits - top)
    total = powers.sum(-1, keepdim=True)
    weights = powers / torch.where(total > 0, total, 1.0)
    return torch.einsum("hnm,mhd->nhd", weights, v), (top + total.log())[..., 0]


def dense_gradients(grad, q, k, v, out, lse, seen, scale):
    """Differentiate by hand with the rows' own output and log-sum-exp, whatever tiles they were made of."""
    n_heads, groups = q.shape[1], q.shape[1] // k.shape[1]
    grad, q, out = grad.double(), q.double(), out.double()
    k, v = heads_of(k, n_heads).double(), heads_of(v, n_heads).double()
    logits = torch.einsum("nhd,mhd->hnm", q, k) * scale
    weights = torch.where(seen, torch.exp(logits - lse.double()[..., None]), 0.0)
    product = torch.einsum("nhd,mhd->hnm", grad, v)
    slope = weights * (product - torch.einsum("nhd,nhd->hn", grad, out)[..., None])
    dq = torch.einsum("hnm,mhd->nhd", slope, k) * scale
    dk = torch.einsum("hnm,nhd->mhd", slope, q) * scale
    dv = torch.einsum("hnm,nhd->mhd", weights, grad)
    return dq, *(x.reshape(len(x), -1, groups, x.shape[-1]).sum(2) for x in (dk, dv))


def spans(cu_q, cu_k):
    """List the slices of queries and keys of each span."""
    return [(slice(*a), slice(*b)) for a, b in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True)]


def check_spans(cu_q, cu_k, q, k, max_q, max_k):
    """Check cumulative lengths, and what the real kernels trust them for."""
    for name, cu in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        check(cu.dtype == torch.int32, f"{name} must have dtype int32")
        check(cu.dim() == 1 and cu.is_contiguous(), f"{name} must be contiguous")
        assert int(cu[0]) == 0, f"{name} must start at 0"
    check(len(cu_q) == len(cu_k) > 1, "batch size must be positive")
    assert int(cu_q[-1]) <= len(q), "reads queries beyond the last"
    assert int(cu_k[-1]) <= len(k), "reads keys beyond the last"
    assert max_q >= int(cu_q.diff().max()), "leaves out the queries beyond max_q"
    assert max_k >= int(cu_k.diff().max()), "leaves out the keys beyond max_k"


# torch's flash attention and the functions around it


def check_flash(q, k, v):
    """Check what FlashAttention-2 accepts."""
    check(q.dtype in HALF, "FlashAttention only support fp16 and bf16 data type")
    check(k.dtype == q.dtype and v.dtype == q.dtype, "query, key and value must have the same dtype")
    check(all(x.stride(-1) == 1 for x in (q, k, v)), "Input tensor must have contiguous last dimension")
    check(q.shape[-1] % 8 == 0, "head_size must be a multiple of 8, this is ensured by padding!")
    check(q.shape[-1] <= 256, "FlashAttention forward only supports head dimension at most 256")
    check(k.shape == v.shape and k.shape[-1] == q.shape[-1], "k and v must have shapes that fit q")
    check(q.shape[-2] % k.shape[-2] == 0, "Number of heads in key/value must divide number of heads in query")


def window_is_causal(is_causal, left, right):
    """Read the window; only an infinite one and a causal one are stood in for."""
    assert left in (None, -1), "no stand-in for sliding windows"
    assert right in (None, -1, 0), "no stand-in for sliding windows"
    return is_causal or right == 0


def flash_forward(
    query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask,
    *, scale=None, window_size_left=None, window_size_right=None, seqused_k=None, alibi_slopes=None,
    block_table=None, num_splits=None,
):  # fmt: skip
    """Stand in for aten::_flash_attention_forward: (B, T, N, H), or (T, N, H) with cumulative lengths."""
    check_flash(query, key, value)
    assert dropout_p == 0, "no stand-in for dropout"
    assert not return_debug_mask, "no stand-in for debug masks"
    assert all(x is None for x in (seqused_k, alibi_slopes, block_table)), "no stand-in for these"
    causal = window_is_causal(is_causal, window_size_left, window_size_right)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if cum_seq_q is None:
        check(query.dim() == 4, "dense queries are (B, T, N, H)")
        rows = [flash_span(*x, causal, scale) for x in zip(query, key, value, strict=True)]
        out, lse = (torch.stack(x) for x in zip(*rows, strict=True))
    else:
        check(query.dim() == 3, "packed queries are (T, N, H)")
        check_spans(cum_seq_q, cum_seq_k, query, key, max_q, max_k)
        out = torch.full_like(query, math.nan)
        lse = torch.full((query.shape[1], len(query)), math.nan, dtype=torch.float32)
        for a, b in spans(cum_seq_q, cum_seq_k):
            out[a], lse[:, a] = flash_span(query[a], key[b], value[b], causal, scale)
    unused = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64), query.new_empty(0)
    return out, lse, *unused


def flash_span(q, k, v, causal, scale):
    """Attend within one span; a row that sees nothing gets zeros and a log-sum-exp of plus infinity."""
    out, lse = dense(q, k, v, visible(len(q), len(k), causal), scale)
    return out.to(q.dtype), torch.where(lse.isneginf(), math.inf, lse).float()


def flash_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
    rng_state, unused, *, scale=None, window_size_left=None, window_size_right=None,
):  # fmt: skip
    """Stand in for aten::_flash_attention_backward, which makes `grad_out` and `out` contiguous itself."""
    check_flash(query, key, value)
    check(out.dtype == query.dtype, "query and out must have the same dtype")
    check(grad_out.dtype == query.dtype, "query and dout must have the same dtype")
    assert dropout_p == 0, "no stand-in for dropout"
    assert logsumexp.dtype == torch.float32, "reads the log-sum-exp as float32"
    assert logsumexp.is_contiguous(), "reads the log-sum-exp by its address alone"
    causal = window_is_causal(is_causal, window_size_left, window_size_right)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if cum_seq_q is None or not cum_seq_q.numel():
        assert logsumexp.shape == (query.shape[0], query.shape[2], query.shape[1]), "(B, N, T)"
        seen = visible(query.shape[1], key.shape[1], causal)
        rows = [dense_gradients(*x, seen, scale) for x in zip(grad_out, query, key, value, out, logsumexp, strict=True)]
        return tuple(torch.stack(x).to(query.dtype) for x in zip(*rows, strict=True))
    check_spans(cum_seq_q, cum_seq_k, query, key, max_q, max_k)
    assert logsumexp.shape == (query.shape[1], len(query)), "(N, T)"
    grads = [torch.full_like(x, math.nan) for x in (query, key, value)]
    for a, b in spans(cum_seq_q, cum_seq_k):
        seen = visible(a.stop - a.start, b.stop - b.start, causal)
        parts = dense_gradients(grad_out[a], query[a], key[b], value[b], out[a], logsumexp[:, a], seen, scale)
        grads[0][a], grads[1][b], grads[2][b] = (x.to(query.dtype) for x in parts)
    return tuple(grads)


# torch's memory-efficient attention

UNMASKED, TOP_LEFT, LOWER_RIGHT = 0, 1, 2


def check_efficient(q, k, v, bias, cu_q, cu_k):
    """Check what both passes accept."""
    check(q.dtype in (*HALF, torch.float32), "expected float16, bfloat16 or float32")
    check(q.dtype == k.dtype == v.dtype, "query, key and value must have one dtype")
    check(q.dim() == k.dim() == v.dim() == 4, "expected (B, T, N, H)")
    check(q.shape[0] == k.shape[0] == v.shape[0], "batch sizes must match")
    check(q.shape[2] == k.shape[2] == v.shape[2], "expected as many key-value heads as query heads")
    check(k.shape[1] == v.shape[1] and q.shape[3] == k.shape[3], "keys, values and head sizes must fit")
    check(all(x.stride(-1) == 1 for x in (q, k, v)), "must have contiguous last dimension")
    least = 16 // q.element_size()
    check(all(x.stride(2) % least == 0 for x in (q, k, v)), "is not correctly aligned (strideH)")
    check((cu_q is None) == (cu_k is None), "both cumulative lengths or none")
    assert bias is None, "no stand-in for biases"
    if cu_q is not None:
        check(q.shape[0] == 1, "cu_seqlen only supports batch_size=1")


def efficient_forward(
    query, key, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, custom_mask_type,
    compute_log_sumexp=False, *, scale=None, seqlen_k=None, window_size=None,
):  # fmt: skip
    """Stand in for aten::_efficient_attention_forward."""
    check_efficient(query, key, value, bias, cu_seqlens_q, cu_seqlens_k)
    assert dropout_p == 0, "no stand-in for dropout"
    assert seqlen_k is None and window_size is None, "no stand-in for these"  # noqa: PT018
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    packed = cu_seqlens_q is not None
    if packed:
        check(max_seqlen_q is not None, "max_seqlen_q")
        check_spans(cu_seqlens_q, cu_seqlens_k, query[0], key[0], max_seqlen_q, max_seqlen_k)
    longest = max_seqlen_q if packed else query.shape[1]
    n_spans = len(cu_seqlens_q) - 1 if packed else len(query)
    out = torch.full_like(query, math.nan, memory_format=torch.contiguous_format)
    lse = torch.full((n_spans, query.shape[2], -(-longest // 32) * 32), math.nan, dtype=torch.float32)
    for number, (row, a, b) in enumerate(efficient_spans(query, key, cu_seqlens_q, cu_seqlens_k)):
        n = a.stop - a.start
        seen = visible(n, b.stop - b.start, custom_mask_type, custom_mask_type == TOP_LEFT)
        part, part_lse = dense(query[row, a], key[row, b], value[row, b], seen, scale)
        out[row, a], lse[number, :, :n] = part.to(out.dtype), part_lse.float()
        lse[number, :, n : -(-n // 32) * 32] = math.inf
    lse = lse if compute_log_sumexp else lse[..., :0]
    unused = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)
    return out, lse, *unused, longest, 0 if packed else key.shape[1]


def efficient_spans(q, k, cu_q, cu_k):
    """List the row, queries and keys of each span."""
    if cu_q is None:
        return [(row, slice(0, q.shape[1]), slice(0, k.shape[1])) for row in range(len(q))]
    return [(0, *parts) for parts in spans(cu_q, cu_k)]


def efficient_backward(
    grad_out_, query, key, value, bias, out, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, logsumexp,
    dropout_p, philox_seed, philox_offset, custom_mask_type, bias_requires_grad,
    *, scale=None, num_splits_key=None, window_size=None, shared_storage_dqdkdv=False,
):  # fmt: skip
    """Stand in for aten::_efficient_attention_backward."""
    check_efficient(query, key, value, bias, cu_seqlens_q, cu_seqlens_k)
    assert not (dropout_p or bias_requires_grad or window_size or shared_storage_dqdkdv), "no stand-in for these"
    assert out.dtype == grad_out_.dtype == query.dtype, "reads the output and its gradient in the dtype of the query"
    assert logsumexp.dtype == torch.float32, "reads the log-sum-exp as float32"
    assert out.is_contiguous(), "reads the output with the strides of a contiguous one"
    check(logsumexp.stride(1) % 8 == 0, "LSE is not correctly aligned (strideH)")
    if cu_seqlens_q is not None:
        check(max_seqlen_q > 0 and max_seqlen_k > 0, "max_seqlen_k required with `cu_seqlens_k`")
        check(max_seqlen_k <= key.shape[1], "Invalid max_seqlen_k")
        check(max_seqlen_q <= query.shape[1], "Invalid max_seqlen_q")
        check_spans(cu_seqlens_q, cu_seqlens_k, query[0], key[0], max_seqlen_q, max_seqlen_k)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    grads = [torch.full_like(x, math.nan) for x in (query, key, value)]
    for number, (row, a, b) in enumerate(efficient_spans(query, key, cu_seqlens_q, cu_seqlens_k)):
        n = a.stop - a.start
        assert bool((logsumexp[number, :, n : -(-n // 32) * 32] == math.inf).all()), "padding must weigh nothing"
        seen = visible(n, b.stop - b.start, custom_mask_type, custom_mask_type == TOP_LEFT)
        tensors = (grad_out_[row, a], query[row, a], key[row, b], value[row, b], out[row, a])
        parts = dense_gradients(*tensors, logsumexp[number, :, :n], seen, scale)
        grads[0][row, a], grads[1][row, b], grads[2][row, b] = (x.to(query.dtype) for x in parts)
    return *grads, query.new_empty(0)


ATEN = {
    "_flash_attention_forward": flash_forward,
    "_flash_attention_backward": flash_backward,
    "_efficient_attention_forward": efficient_forward,
    "_efficient_attention_backward": efficient_backward,
}


@contextlib.contextmanager
def kernels_on_cpu(kernels=ATEN):
    """Let torch's CUDA-only operators run on CPU tensors."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in kernels.items():
        library.impl(name, kernel, "CPU")
    try:
        yield
    finally:
        library._destroy()


# variable-length functions, differentiated by autograd


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
    causal = window_is_causal(False, *window_size)
    out, lse = packed_attention(query, key, value, cu_seq_q, cu_seq_k, causal, scale)
    return (out, lse.detach()) if return_aux is not None and return_aux.lse else out


def varlen_attn_2_12(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1),
    enable_gqa=False, seqused_k=None, block_table=None, num_splits=None,
):  # fmt: skip
    """Stand in for varlen_attn as torch 2.12 and 2.13 have it: grouped heads where asked for."""
    check_flash(query, key, value)
    check_spans(cu_seq_q, cu_seq_k, query, key, max_q, max_k)
    assert seqused_k is None and block_table is None, "no stand-in for these"  # noqa: PT018
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError("Expect query and key/value to have the same number of heads. Try setting enable_gqa=True")
    causal = window_is_causal(False, *window_size)
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
    assert not (dropout_p or softcap or return_attn_probs), "no stand-in for these"
    assert alibi_slopes is None and block_table is None, "no stand-in for these"  # noqa: PT018
    causal = window_is_causal(causal, *window_size)
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
    assert not p, "no stand-in for dropout"
    assert (sum(attn_bias.q_lengths), sum(attn_bias.k_lengths)) == (query.shape[1], key.shape[1])
    ends = [torch.tensor([0, *lengths]).cumsum(0) for lengths in (attn_bias.q_lengths, attn_bias.k_lengths)]
    return packed_attention(query[0], key[0], value[0], *ends, True, scale)[0][None]


# flex attention


class AuxOutput(NamedTuple):
    lse: torch.Tensor | None = None
    max_scores: torch.Tensor | None = None


def flex_attention(
    query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_lse=False,
    kernel_options=None, *, return_aux=None,
):  # fmt: skip
    """Stand in for compiled flex attention: it visits the listed blocks alone, and asks no pair of a full block."""
    assert score_mod is None and not return_lse, "no stand-in for these"  # noqa: PT018
    check(query.shape[1] == key.shape[1] or enable_gqa, "Expect query and key/value to have the same number of heads")
    check(query.dtype == key.dtype == value.dtype, "Expected query, key, and value to have the same dtype")
    batch, n_q, n_k = len(query), query.shape[2], key.shape[2]
    check(block_mask.seq_lengths == (n_q, n_k), "block_mask was created for other lengths")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    rows = []
    for b in range(batch):
        seen = flex_visible(block_mask, b, n_q, n_k)
        q, k, v = (x[b].transpose(0, 1) for x in (query, key, value))
        out, lse = dense(q, k, v, seen, scale)
        rows.append((out.transpose(0, 1).to(query.dtype), lse.float()))
    out, lse = (torch.stack(x) for x in zip(*rows, strict=True))
    return (out, AuxOutput(lse=lse)) if return_aux is not None and return_aux.lse else out


def flex_visible(block_mask, b, n_q, n_k):
    """Read a block mask as the kernel does."""
    height, width = block_mask.BLOCK_SIZE
    row = min(b, len(block_mask.kv_num_blocks) - 1)
    seen = torch.zeros(n_q, n_k, dtype=torch.bool)
    for number in range(-(-n_q // height)):
        q = slice(number * height, min(number * height + height, n_q))
        for kind in ("", "full_"):
            count = int(getattr(block_mask, f"{kind}kv_num_blocks")[row, 0, number])
            for block in getattr(block_mask, f"{kind}kv_indices")[row, 0, number, :count].tolist():
                k = slice(block * width, min(block * width + width, n_k))
                if kind:
                    seen[q, k] = True
                else:
                    places = torch.arange(q.start, q.stop)[:, None], torch.arange(k.start, k.stop)[None, :]
                    seen[q, k] = block_mask.mask_mod(torch.tensor(b), torch.tensor(0), *places)
    return seen
