"""Kernels of attention on queries and keys that are already rotated.

`CAUSAL_KERNELS` maps a backend to a function that attends by one causal call. It takes q (B, N, Tq, H), k and v
(B, K, Tk, H), the segments of the packed row and the tokens of a sliding window, and returns (B, N, Tq, H). Packed rows
have B = 1 and Tq = Tk. Without segments the queries of each row are aligned with its last keys.

The span kernels run contiguous spans of queries and keys. They also return the log-sum-exp of the logits, in nats, so
that the bands of a distance method can be merged outside. torch's public functions return none, so that its operators
are called directly.

Axes: B batch, T tokens, N heads, K key-value heads, H per head, S spans.
Query head n reads key-value head n // (N / K).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lab.model.attention.segments import Segments, Spans


def sdpa(q: Tensor, k: Tensor, v: Tensor, segments: Segments | None, window: int | None = None) -> Tensor:
    """Run torch's scaled dot-product attention, packed rows segment by segment.

    Segments of one length are a batch. Else, measured on CPUs, one call per segment beats padded batches and a dense
    mask at all windows. The split and the concatenation keep the backward pass free of full-size zeros, which slicing
    would add per segment.
    """
    assert window is None, "sdpa has no windows"
    if segments is None:
        return sdpa_rows(q, k, v)
    if len({*segments.lengths}) == 1 and segments.n_real == segments.n_tokens and segments.anchors is None:
        rows = (x[0].unflatten(1, (len(segments.lengths), -1)).transpose(0, 1) for x in (q, k, v))  # views, no copies
        return join_spans(sdpa_rows(*rows))[None].transpose(1, 2)
    # The last part is padding, which zip below leaves out because there is no segment for it.
    sizes = [*segments.lengths, segments.n_tokens - segments.n_real]
    key_sizes = sizes
    if segments.anchors is not None:  # short segments only: with a dense mask the hidden half is computed too
        k, v, key_sizes = k[:, :, segments.key_indices], v[:, :, segments.key_indices], list(segments.spans.k_lengths)
    parts = zip(q.split(sizes, dim=2), k.split(key_sizes, dim=2), v.split(key_sizes, dim=2))
    outs = [sdpa_rows(*part).transpose(1, 2) for part, _ in zip(parts, segments.lengths)]
    outs.append(q.new_zeros(1, sizes[-1], q.shape[1], q.shape[3]))
    return torch.cat(outs, dim=1).transpose(1, 2)


def sdpa_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend causally with queries aligned to the last keys."""
    n_q, n_k = q.shape[2], k.shape[2]
    gqa = q.shape[1] != k.shape[1]
    if n_q == n_k:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
    if n_q == 1:  # the heads of a group become rows of one head: no key is repeated
        return F.scaled_dot_product_attention(q.reshape(len(k), k.shape[1], -1, k.shape[3]), k, v).reshape(q.shape)
    # is_causal would align the first query with the first key, but these queries are the last tokens.
    mask = torch.ones(n_q, n_k, dtype=torch.bool, device=q.device).tril(n_k - n_q)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=gqa)


def in_spans(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Segments | None,
    window: int | None = None,
    *,
    kernel: Callable[[Tensor, Tensor, Tensor, Spans], Tensor],
) -> Tensor:
    """Attend by a variable-length kernel on (T, N, H): each row is a span, padding is returned as zeros."""
    batch, _, tokens, _ = q.shape
    if segments is None and tokens == 1:
        if window is not None:
            k, v = k[:, :, -window:], v[:, :, -window:]
        return sdpa_rows(q, k, v)
    q_TNH, k_TNH, v_TNH = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    if segments is None:
        spans = Spans.from_lengths([tokens] * batch, [k.shape[2]] * batch, q.device)
    elif not segments.lengths:  # a row of padding, and kernels take no empty batch
        return torch.zeros_like(q)
    else:
        spans = segments.spans
        if segments.anchors is not None:
            # index_select adds gradients without a sort, unlike indexing by a tensor.
            k_TNH, v_TNH = k_TNH.index_select(0, segments.key_indices), v_TNH.index_select(0, segments.key_indices)
    if window is not None:
        spans = replace(spans, before=window - 1)  # the window includes the query's own key
    return kernel(q_TNH, k_TNH, v_TNH, spans).view(batch, tokens, *q.shape[1::2]).transpose(1, 2)


def without_padding(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Call a kernel without the tokens behind the last span, which flash-attn and xformers do not take."""

    def attend(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
        n_k = sum(spans.k_lengths)
        out = kernel(q[: sum(spans.q_lengths)], k[:n_k], v[:n_k], spans)
        return F.pad(out, (0, 0, 0, 0, 0, len(q) - len(out)))

    return attend


@without_padding
def flash_kernel(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
    """Call flash-attn's variable-length kernel."""
    from flash_attn import flash_attn_varlen_func

    out: Tensor = flash_attn_varlen_func(q, k, v, *spans.arguments, causal=True, window_size=(spans.before, 0))
    return out


@without_padding
def xformers_kernel(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
    """Call xformers' memory-efficient attention under a block-diagonal causal bias."""
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha.attn_bias import BlockDiagonalCausalFromBottomRightMask

    bias = BlockDiagonalCausalFromBottomRightMask.from_seqlens(
        list(spans.q_lengths), list(spans.k_lengths), device=q.device
    )
    if spans.before >= 0:
        bias = bias.make_local_attention_from_bottomright(spans.before + 1)  # counts the query's own key
    out: Tensor = memory_efficient_attention(*(repeat_heads(x, q)[None] for x in (q, k, v)), attn_bias=bias)
    return out[0]


class Flash:
    """Torch's own flash attention, for float16 and bfloat16."""

    windows: ClassVar[bool] = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, *spans.arguments, 0.0, spans.causal, False, window_size_left=spans.before
        )
        return out, lse

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, spans: Spans
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Call the kernel, which reads the log-sum-exp as contiguous float32 whatever its strides are."""
        unused = torch.zeros(2, dtype=torch.uint64, device=q.device)  # a random state for dropout
        return torch.ops.aten._flash_attention_backward(
            grad.to(q.dtype),
            q,
            k,
            v,
            out.to(q.dtype),
            lse.contiguous(),
            *spans.arguments,
            0.0,
            spans.causal,
            unused,
            unused,
            window_size_left=spans.before,
        )


def repeat_heads(x: Tensor, q: Tensor) -> Tensor:
    """Repeat key-value heads (T, K, H) for all heads of q (T, N, H); a view if there are none to repeat."""
    return x[:, :, None].expand(-1, -1, q.shape[1] // x.shape[1], -1).flatten(1, 2)


class CpuFlash:
    """Torch's flash attention for CPUs, which runs one span at a time, or any number of spans of one length."""

    windows: ClassVar[bool] = False

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
        """Attend; without a causal mask the heads of a group become rows of one head, so that no key is repeated."""
        parts = []
        if spans.causal:  # the kernel aligns rows with keys, and stacked heads have several rows for each key
            k, v = repeat_heads(k, q), repeat_heads(v, q)
        for q_part, k_part, v_part in split_spans(spans, (q,), (k, v)):
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                stack_groups(q_part, k_part), k_part, v_part, 0.0, spans.causal
            )
            parts.append((join_spans(out.reshape(q_part.shape)), join_spans(lse.reshape(q_part.shape[:3]))))
        out, lse = map(torch.cat, zip(*parts, strict=True))
        return out, lse.T

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, spans: Spans
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the kernel's own backward pass with the output and log-sum-exp of the full rows."""
        parts = []
        kv_heads = k.shape[1]
        if spans.causal:  # as in the forward pass
            k, v = repeat_heads(k, q), repeat_heads(v, q)
        for *rows, lse_part, k_part, v_part in split_spans(spans, (grad, q, out, lse.T), (k, v)):
            grad_rows, q_rows, out_rows = (stack_groups(x, k_part) for x in rows)
            dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad_rows, q_rows, k_part, v_part, out_rows, lse_part.reshape(q_rows.shape[:3]), 0.0, spans.causal
            )
            parts.append([join_spans(x) for x in (dq.reshape(rows[1].shape), dk, dv)])
        dq, dk, dv = map(torch.cat, zip(*parts, strict=True))
        # Keys were repeated for the heads of a group: the gradient of a key is the sum over these copies.
        return dq, dk.unflatten(1, (kv_heads, -1)).sum(2), dv.unflatten(1, (kv_heads, -1)).sum(2)


def split_spans(spans: Spans, queries: tuple[Tensor, ...], keys: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    """Cut tensors (T, N, ...) into spans (1, N, n, ...), or, all of one length, into a batch of them (S, N, n, ...)."""
    q_lengths, k_lengths = spans.q_lengths, spans.k_lengths
    if len({*q_lengths}) == len({*k_lengths}) == 1:
        yield tuple(x.unflatten(0, (len(q_lengths), -1)).transpose(1, 2) for x in (*queries, *keys))
        return
    parts = [x.split(q_lengths) for x in queries] + [x.split(k_lengths) for x in keys]
    for span in zip(*parts, strict=True):
        yield tuple(x[None].transpose(1, 2) for x in span)


def stack_groups(x: Tensor, k: Tensor) -> Tensor:
    """Stack the heads of a group as rows of one head: (S, N, T, H) to (S, K, N / K * T, H)."""
    return x.unflatten(1, (k.shape[1], -1)).flatten(2, 3)


def join_spans(x: Tensor) -> Tensor:
    """Join the spans of a batch, (S, N, n, ...) to (S * n, N, ...)."""
    return x.transpose(1, 2).flatten(0, 1)


SpanKernel = Flash | CpuFlash
"""Attention within spans and its gradient; `windows` tells whether the spans may have a window.

`forward` returns the output (T, N, H) and the log-sum-exp (N, T). `backward` takes the gradient, q, k, v, the full
rows' output and log-sum-exp, and returns the gradients of q, k and v.
"""


class FlashCall(torch.autograd.Function):
    """Attention by one call of torch's flash attention on the spans of a row."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
        """Attend; padding, which the kernel does not write, becomes zeros."""
        out, lse = Flash().forward(q, k, v, spans)
        out[sum(spans.q_lengths) :] = 0  # the memory may contain nan, which a later product with 0 does not remove
        ctx.spans = spans
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Call the kernel's backward pass; the gradients of padding become zeros."""
        q, k, v, out, lse = ctx.saved_tensors
        spans = ctx.spans
        grads = Flash().backward(grad, q, k, v, out, lse, spans)
        for x, lengths in zip(grads, (spans.q_lengths, spans.k_lengths, spans.k_lengths), strict=True):
            x[sum(lengths) :] = 0
        return *grads, None


CAUSAL_KERNELS: dict[str, Callable[..., Tensor]] = {
    "sdpa": sdpa,
    "varlen": partial(in_spans, kernel=FlashCall.apply),
    "flash": partial(in_spans, kernel=flash_kernel),
    "xformers": partial(in_spans, kernel=xformers_kernel),
}
