"""Stand-ins for torch's CUDA operators of flash and memory-efficient attention, and of products added in float32.

Source: pytorch, aten/src/ATen/native/transformers/cuda: attention.cu, attention_backward.cu, flash_attn/flash_api.cpp,
mem_eff_attention/kernel_backward.h; aten/src/ATen/native/cuda/Blas.cpp.
"""

import contextlib
import math

import torch

from tests.model.stand_ins.definition import (
    HALF,
    check,
    check_flash,
    check_spans,
    dense,
    dense_gradients,
    spans,
    visible,
    window_of,
    without,
)


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
        out[a], lse[:, a] = flash_span(query[a], key[b], value[b], window, scale)
    unused = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64), query.new_empty(0)
    return out, lse, *unused


def flash_span(q, k, v, window, scale):
    """Attend within one span; a row that sees nothing gets zeros and a log-sum-exp of plus infinity."""
    causal, left = window
    out, lse = dense(q, k, v, visible(len(q), len(k), causal, left=left), scale)
    return out.to(q.dtype), torch.where(lse.isneginf(), math.inf, lse).float()


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


TOP_LEFT = 1  # of the masks 0, none, 1, causal from the top left, and 2, causal from the lower right


def check_efficient(q, k, v, cu_q, cu_k):
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
    if cu_q is not None:
        check(q.shape[0] == 1, "cu_seqlen only supports batch_size=1")


def efficient_forward(
    query, key, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, custom_mask_type,
    compute_log_sumexp=False, *, scale=None, seqlen_k=None, window_size=None,
):  # fmt: skip
    """Stand in for aten::_efficient_attention_forward."""
    check_efficient(query, key, value, cu_seqlens_q, cu_seqlens_k)
    without(bias, dropout_p, seqlen_k, window_size)
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
    check_efficient(query, key, value, cu_seqlens_q, cu_seqlens_k)
    without(bias, dropout_p, bias_requires_grad, num_splits_key, window_size, shared_storage_dqdkdv)
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
    "_efficient_attention_forward": efficient_forward,
    "_efficient_attention_backward": efficient_backward,
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
