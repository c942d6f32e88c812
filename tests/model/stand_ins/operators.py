"""Stand-ins for torch's CUDA operators of flash attention, and of products added in float32.

Source: pytorch, aten/src/ATen/native/transformers/cuda: attention.cu, attention_backward.cu, flash_attn/flash_api.cpp;
aten/src/ATen/native/cuda/Blas.cpp.
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
