"""Cross-entropy by chunks of tokens, whose gradients the forward pass computes: all logits never exist at once.

For hidden states h (T, D), head W (V, D) and targets y, the loss is the sum over scored t of
logsumexp(W h_t) - (W h_t)[y_t]. Its gradient in the logits is softmax - onehot, known as soon as a chunk's logits are,
so the logits are dropped at once. Memory: one chunk of (chunk, V) float32 besides the gradients, on a GPU two in the
dtype of the logits. There the head's gradient is summed in float32 inside the products. Loss weights multiply the terms
and the rows of the gradient; the sum without them is returned too, to be logged.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lab.core.types import IGNORE
from lab.model import devices


def chunk_tokens(n_vocab: int) -> int:
    """Return how many tokens' logits exist at a time."""
    # Every chunk reads and writes the head's full gradient, so that a large vocabulary takes fewer, larger chunks.
    return 4096 if n_vocab >= 1 << 16 else 1024


class ChunkedCrossEntropy(torch.autograd.Function):
    """Sums of the cross-entropy over scored tokens, weighted and plain; see the module's docstring."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, trains: bool, loss_weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute both sums, float32 (or float64 for float64 inputs); to train, keep the weighted one's gradients."""
        compute = devices.compute_dtype(hidden)
        wide = torch.promote_types(compute, torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            head = weight.to(compute)
            grad_hidden = grad_weight = None
            if trains and ctx.needs_input_grad[0]:
                grad_hidden = torch.empty_like(hidden)
            if trains and ctx.needs_input_grad[1]:
                grad_weight = torch.zeros_like(weight, dtype=wide)
            has_gradient = grad_hidden is not None or grad_weight is not None
            total = torch.zeros((), dtype=wide, device=hidden.device)
            plain = torch.zeros_like(total)
            compute_terms = chunk_terms
            if devices.device_type(hidden.device) == "cuda":
                compute_terms = compiled_terms()
            chunk = chunk_tokens(len(weight))
            for start in range(0, len(targets), chunk):
                part = slice(start, start + chunk)
                h = hidden[part].to(compute)
                y = targets[part]
                scored = (y != IGNORE).to(wide)
                weighted = scored
                if loss_weights is not None:
                    weighted = scored * loss_weights[part]
                sums, grad = compute_terms(devices.multiply(h, head.T), y, weighted, scored, has_gradient)
                total -= sums[0]
                plain -= sums[1]
                if grad_hidden is not None:
                    grad_hidden[part] = devices.multiply(grad, head)
                if grad_weight is not None:
                    add_product(grad_weight, grad.T, h)
                # Without a reference to it the memory is free for the next chunk's logits.
                del grad
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.dtypes = hidden.dtype, weight.dtype
        ctx.mark_non_differentiable(plain)
        return total, plain

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients that the forward pass computed."""
        grads = []
        for grad, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
            # In place: a second gradient of the head takes 1 GB in float32 at 1.49B parameters.
            grads.append(None if grad is None else grad.mul_(grad_loss).to(dtype))
        return *grads, None, None, None


def chunk_terms(
    logits: Tensor, targets: Tensor, weighted: Tensor, scored: Tensor, trains: bool
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Sum a chunk's log-probabilities of its targets, weighted and plain; to train, compute the logits' gradient too.

    Shapes: logits (chunk, V); the others (chunk,); returns two scalars and (chunk, V) in the dtype of the logits, of no
        meaning without training.
    """
    columns = targets.clamp_min(0)[:, None]  # IGNORE is no column; the weight of its row is 0
    rows, grads = len(logits), logits
    if devices.device_type(logits.device) == "cpu":  # the gradient replaces the logits
        rows = 64  # whose logits stay in a processor's caches from the softmax to the gradient
    else:  # within a graph, which overwrites none of its inputs
        grads = torch.empty_like(logits)
    chosen = []
    for part, target, weight, grad in zip(*(x.split(rows) for x in (logits, columns, weighted[:, None], grads))):
        log_probs = torch.log_softmax(part, dim=-1, dtype=scored.dtype)
        chosen.append(log_probs.gather(1, target))
        if trains:
            probs = log_probs.exp_()
            # In the dtype of the logits p may round to 1. The difference is taken before, in float32.
            own_grad = (probs.gather(1, target) - 1) * weight
            grad.copy_(probs.mul_(weight)).scatter_(1, target, own_grad.to(grad.dtype))
    target_log_probs = torch.cat(chosen)[:, 0]
    return ((target_log_probs * weighted).sum(), (target_log_probs * scored).sum()), grads


@cache
def compiled_terms() -> Callable[..., tuple[tuple[Tensor, Tensor], Tensor]]:
    """Compile `chunk_terms` once, to store nothing between logits and gradient, where a compiler is installed."""
    if not devices.compiles():
        return chunk_terms
    return torch.compile(chunk_terms, backend=devices.inductor, fullgraph=True)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b to `total` in place; a GPU adds within the product, which is not rounded to the dtype of a and b."""
    if devices.device_type(total.device) == "cuda":
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += devices.multiply(a, b)


@torch.no_grad()
def target_losses(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> Tensor:
    """Compute each target's loss in nats, 0 where it is IGNORE, without gradients: (T, D), (V, D), (T,) -> (T,)."""
    wide = torch.promote_types(hidden_TD.dtype, torch.float32)
    losses = torch.zeros(targets_T.shape, dtype=wide, device=hidden_TD.device)
    for indices in (targets_T != IGNORE).nonzero()[:, 0].split(chunk_tokens(len(weight_VD))):
        logits = functional.linear(hidden_TD[indices], weight_VD).to(wide)
        losses[indices] = functional.cross_entropy(logits, targets_T[indices], reduction="none")
    return losses


def summed_cross_entropy(
    hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, loss_weights_T: Tensor | None = None
) -> Tensor:
    """Sum the next-token loss over the tokens whose target is not IGNORE, in nats.

    Shapes: hidden (T, D), weight (V, D), targets int64 (T,), loss weights (T,); returns a scalar, or with loss weights
        (2,): the weighted sum, and the plain sum, which has no gradient.
    """
    # Within `forward` of an autograd function gradients are always off, so that it cannot ask by itself.
    trains = torch.is_grad_enabled()
    loss: Tensor
    loss, plain = ChunkedCrossEntropy.apply(hidden_TD, weight_VD, targets_T, trains, loss_weights_T)  # type: ignore[no-untyped-call]
    return loss if loss_weights_T is None else torch.stack([loss, plain])
