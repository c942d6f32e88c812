"""Stand-ins for GPU kernels that run on a CPU, written from the documentation and source of the real ones.

Each takes what the real kernel takes, in its layout and dtypes, computes attention densely in float64 from the
definition, and refuses what the real one refuses. Where the real one would read or write the wrong memory in silence,
the stand-in raises AssertionError; memory that it leaves unwritten holds NaN. None of it is the lab's.

Sources: pytorch, aten/src/ATen/native/transformers/cuda: attention.cu, attention_backward.cu, flash_attn/flash_api.cpp;
aten/src/ATen/native/cuda/Blas.cpp; flash-attn 2.8.3, flash_attn/flash_attn_interface.py; xformers 0.0.35,
ops/fmha/__init__.py and ops/fmha/attn_bias.py.
"""

import contextlib
import math
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

HALF = (torch.float16, torch.bfloat16)


def check(holds, message):
    """Reject as TORCH_CHECK does."""
    if not holds:
        raise RuntimeError(message)


def without(*options):
    """Reject options that no stand-in knows."""
    assert not any(x is not None and x is not False and x != 0 for x in options), "no stand-in for this option"


def visible(n_q, n_k, causal, left=None):
    """Draw the mask of one span; causal ones are aligned at the lower right corner.

    A query sees at most `left` keys before its own.
    """
    if not causal:
        assert left is None, "no stand-in for windows of other spans"
        return torch.ones(n_q, n_k, dtype=torch.bool)
    own = torch.arange(n_q)[:, None] + n_k - n_q
    keys = torch.arange(n_k)[None, :]
    return (keys <= own) & (keys >= own - (n_k if left is None else left))


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


def check_flash(q, k, v):
    check(q.dtype in HALF, "FlashAttention only support fp16 and bf16 data type")
    check(k.dtype == q.dtype and v.dtype == q.dtype, "query, key and value must have the same dtype")
    check(all(x.stride(-1) == 1 for x in (q, k, v)), "Input tensor must have contiguous last dimension")
    check(q.shape[-1] % 8 == 0, "head_size must be a multiple of 8, this is ensured by padding!")
    check(q.shape[-1] <= 256, "FlashAttention forward only supports head dimension at most 256")
    check(k.shape == v.shape and k.shape[-1] == q.shape[-1], "k and v must have shapes that fit q")
    check(q.shape[-2] % k.shape[-2] == 0, "Number of heads in key/value must divide number of heads in query")


def window_of(is_causal, left, right):
    """Read the window; only causal ones are stood in for: whether it is one, and how far it reaches, None for all."""
    assert right in (None, -1, 0), "no stand-in for windows that look ahead"
    return is_causal or right == 0, None if left in (None, -1) else left


def flash_forward(
    query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask,
    *, scale=None, window_size_left=None, window_size_right=None, seqused_k=None, alibi_slopes=None,
    block_table=None, num_splits=None,
):  # fmt: skip
    """Stand in for aten::_flash_attention_forward: (T, N, H) with cumulative lengths."""
    check_flash(query, key, value)
    without(dropout_p, return_debug_mask, seqused_k, alibi_slopes, block_table)
    window = window_of(is_causal, window_size_left, window_size_right)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    check(query.dim() == 3, "packed queries are (T, N, H)")
    check_spans(cum_seq_q, cum_seq_k, query, key, max_q, max_k)
    out = torch.full_like(query, math.nan)
    lse = torch.full((query.shape[1], len(query)), math.nan, dtype=torch.float32)
    for a, b in spans(cum_seq_q, cum_seq_k):
        seen = visible(a.stop - a.start, b.stop - b.start, *window)
        out[a], sums = dense(query[a], key[b], value[b], seen, scale)
        lse[:, a] = torch.where(sums.isneginf(), math.inf, sums)  # plus infinity for a row that sees nothing
    unused = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64), query.new_empty(0)
    return out, lse, *unused


def flash_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
    rng_state, unused, *, scale=None, window_size_left=None, window_size_right=None,
):  # fmt: skip
    """Stand in for aten::_flash_attention_backward, which makes `grad_out` and `out` contiguous itself."""
    check_flash(query, key, value)
    check(out.dtype == query.dtype, "query and out must have the same dtype")
    check(grad_out.dtype == query.dtype, "query and dout must have the same dtype")
    without(dropout_p)
    assert logsumexp.dtype == torch.float32, "reads the log-sum-exp as float32"
    assert logsumexp.is_contiguous(), "reads the log-sum-exp by its address alone"
    causal, left = window_of(is_causal, window_size_left, window_size_right)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    check_spans(cum_seq_q, cum_seq_k, query, key, max_q, max_k)
    assert logsumexp.shape == (query.shape[1], len(query)), "(N, T)"
    grads = [torch.full_like(x, math.nan) for x in (query, key, value)]
    for a, b in spans(cum_seq_q, cum_seq_k):
        seen = visible(a.stop - a.start, b.stop - b.start, causal, left=left)
        parts = dense_gradients(grad_out[a], query[a], key[b], value[b], out[a], logsumexp[:, a], seen, scale)
        grads[0][a], grads[1][b], grads[2][b] = (x.to(query.dtype) for x in parts)
    return tuple(grads)


def packed_attention(q, k, v, cu_q, cu_k, window, scale=None):
    """Attend span by span; return (T, N, H)."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    parts = [
        dense(q[a], k[b], v[b], visible(a.stop - a.start, b.stop - b.start, *window), scale)[0]
        for a, b in spans(cu_q, cu_k)
    ]
    return torch.cat(parts).to(q.dtype)


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
    block_table=None,
):  # fmt: skip
    """Stand in for flash-attn 2.8.3's function, which pads heads to a multiple of 8 itself."""
    check_flash(*(torch.nn.functional.pad(x, (0, -x.shape[-1] % 8)) for x in (q, k, v)))
    check_spans(cu_seqlens_q, cu_seqlens_k, q, k, max_seqlen_q, max_seqlen_k)
    without(dropout_p, softcap, return_attn_probs, alibi_slopes, block_table)
    window = window_of(causal, *window_size)
    return packed_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, window, softmax_scale)


@dataclass
class BlockDiagonalCausalFromBottomRightMask:
    """Stand in for xformers' bias, and for its local one: a query sees the last `window_size` keys up to its own."""

    q_lengths: list[int]
    k_lengths: list[int]
    window_size: int | None = None

    @classmethod
    def from_seqlens(cls, q_seqlen, kv_seqlen=None, *, device=None):
        kv_seqlen = q_seqlen if kv_seqlen is None else kv_seqlen
        assert len(q_seqlen) == len(kv_seqlen)
        for number, (queries, keys) in enumerate(zip(q_seqlen, kv_seqlen, strict=True)):
            if keys < queries:
                raise ValueError(f"Block #{number} has num_keys={keys} and num_queries={queries}.")
        return cls(list(q_seqlen), list(kv_seqlen))

    def make_local_attention_from_bottomright(self, window_size):
        if window_size <= 0:
            raise ValueError(f"Expected `window_size > 0`, but window_size={window_size}")
        return replace(self, window_size=window_size)


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
    window = True, None if attn_bias.window_size is None else attn_bias.window_size - 1
    return packed_attention(query[0], key[0], value[0], *ends, window, scale)[None]


def addmm_out(self, mat1, mat2, out_dtype, *, beta=1, alpha=1, out):
    """Stand in for aten::addmm.dtype_out from torch 2.11 on; earlier ones refuse a wide `self`."""
    check(mat1.dtype == mat2.dtype, "mat1 and mat2 must have the same dtype")
    narrow = out_dtype == torch.float32 and mat1.dtype in HALF
    check(out_dtype == mat1.dtype or narrow, "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
    check(out_dtype == out.dtype, "out_dtype must be the same as the dtype of the provided out tensor")
    check(self.dtype in (out_dtype, mat1.dtype), "self dtype must match either out_dtype or mat1 dtype")
    return out.copy_(beta * self.double() + alpha * (mat1.double() @ mat2.double()))


OPERATORS = {
    "addmm.dtype_out": addmm_out,
    "_flash_attention_forward": flash_forward,
    "_flash_attention_backward": flash_backward,
}


@contextlib.contextmanager
def on_cpu(kernels=None):
    """Let torch's CUDA-only operators run on CPU tensors."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in (kernels or OPERATORS).items():
        library.impl(name, kernel, "CPU")
    try:
        yield
    finally:
        library._destroy()
