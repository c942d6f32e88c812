"""Stand-ins for modules whose CUDA kernels keep other tensors for the backward pass than their CPU kernels do.

Attention uses the variable-length flash kernel, which keeps q, k, v, its output and the log-sum-exp of each row, but no
logits. RMSNorm is one kernel, which keeps its input and one number per token; on a CPU torch composes it of eight
operations that keep twice the input in float32. The loss holds two chunks of logits in the dtype of the logits, and the
float32 sum of the head's gradient, to which its products add. Workspaces inside kernels are not included; the largest,
the float32 gradient of q in flash attention's backward pass, exists after a block's feed-forward activations are freed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lab.model.attention.attend import KERNELS
from lab.model.attention.backends import runs_whole
from lab.model.attention.cache import KeyCache
from lab.model.attention.layout import Layout
from lab.model.block import Attention
from lab.model.config import DecoderConfig
from lab.model.decoder import Decoder, Head
from lab.model.loss import ChunkedCrossEntropy, chunk_tokens
from lab.positions import Distance, Frequencies

KERNEL = "varlen"  # flash-attn's kernel returns and keeps tensors of the same sizes


class FlashAttention(Attention):
    """`Attention` by the variable-length kernel on any device."""

    def attended_here(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: KeyCache | None) -> Tensor:
        """Rotate and attend as on a GPU; shapes as there."""
        keys = [rotation.rotate(k).to(v.dtype) for rotation in layout.k_rotations]
        kernel = KERNEL if runs_whole(layout) else "cpu_bands"  # of the same sizes for any head width
        return KERNELS[kernel](q, keys, v, layout, self.layer)


class FusedNorm(torch.autograd.Function):
    """The tensors of the fused RMSNorm kernel, without its values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Keep the input and the inverse root mean square of each token in float32."""
        scale = x.new_empty(*x.shape[:-1], 1, dtype=torch.promote_types(x.dtype, torch.float32))
        ctx.save_for_backward(x, weight, scale)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Allocate the gradients of the input and of the weight."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class FusedRMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` by one kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale every token; shapes and kept tensors only."""
        out: Tensor = FusedNorm.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return out


class FusedCrossEntropy(torch.autograd.Function):
    """The tensors of the loss with its compiled body and sums inside products, without their values."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        """Allocate both gradients, and a chunk's logits and their gradient."""
        device = hidden.device.type
        compute = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        wide = torch.promote_types(compute, torch.float32)
        head = weight.to(compute)
        ctx.save_for_backward(torch.empty_like(hidden), torch.zeros_like(weight, dtype=wide))
        ctx.dtypes = hidden.dtype, weight.dtype
        logits = head.new_empty(min(chunk_tokens(len(head)), len(hidden)), len(head))
        grad = torch.empty_like(logits)
        return grad.new_zeros((), dtype=wide)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients."""
        return ChunkedCrossEntropy.backward(ctx, grads[0], grads[0])[:2]


class FusedHead(Head):
    """`Head` with the loss as on a GPU."""

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:  # type: ignore[override]
        """Compute the loss; shapes and tensors only."""
        loss: Tensor = FusedCrossEntropy.apply(x.flatten(0, 1), self.weight)  # type: ignore[no-untyped-call]
        return loss


def gpu_decoder(cfg: DecoderConfig, *, frequencies: Frequencies, distance: Distance, recompute: bool) -> Decoder:
    """Build the decoder of a GPU run on the meta device."""
    with torch.device("meta"):
        decoder = Decoder(
            cfg, frequencies=frequencies, distance=distance, backend=KERNEL, seed=None, recompute=recompute
        )
        for number, block in enumerate(decoder.blocks):
            block.attention = FlashAttention(cfg, number, KERNEL)
            block.attention_norm = FusedRMSNorm(cfg.d_model, eps=cfg.norm_eps)
            block.feed_forward_norm = FusedRMSNorm(cfg.d_model, eps=cfg.norm_eps)
        decoder.norm = FusedRMSNorm(cfg.d_model, eps=cfg.norm_eps)
        decoder.head = FusedHead(cfg.d_model, cfg.vocab_size, bias=False)
        if cfg.tie_embeddings:
            decoder.head.weight = decoder.embedding.weight
    return decoder
