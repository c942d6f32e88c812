"""The optimizer of a decoder: AdamW, whose weight decay leaves out vectors (norms and biases)."""

from __future__ import annotations

from torch.optim import AdamW, Optimizer

from lab.model.config import BETA1, EPSILON, WEIGHT_DECAY, OptimConfig
from lab.model.decoder import Decoder


def make_optimizer(decoder: Decoder, optim: OptimConfig) -> Optimizer:
    """Build the optimizer of a decoder."""
    parameters = list(decoder.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=optim.lr, eps=EPSILON, betas=(BETA1, optim.beta2), fused=True)
