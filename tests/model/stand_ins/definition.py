"""Attention within spans by definition, in float64, and the checks that kernels share."""

import math
from itertools import pairwise

import torch

HALF = (torch.float16, torch.bfloat16)


def check(holds, message):
    """Refuse as TORCH_CHECK does."""
    if not holds:
        raise RuntimeError(message)


def without(*options):
    """Refuse options that no stand-in knows."""
    assert not any(x is not None and x is not False and x != 0 for x in options), "no stand-in for this option"


def visible(n_q, n_k, causal, top_left=False, left=None):
    """Draw the mask of one span; causal ones are aligned at the lower right corner unless told otherwise.

    A query sees at most `left` keys before its own.
    """
    if not causal:
        assert left is None, "no stand-in for windows of other spans"
        return torch.ones(n_q, n_k, dtype=torch.bool)
    own = torch.arange(n_q)[:, None] + (0 if top_left else n_k - n_q)
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
    """Check what FlashAttention-2 accepts."""
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
