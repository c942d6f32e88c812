"""The optimizer of a decoder: AdamW, or Muon for the matrices of the blocks and AdamW for all else.

Muon updates a matrix W (A, B), whose gradient is G, by its momentum M, at rate r with weight decay w and m = 0.95:

    M = m M + (1 - m) G
    W = (1 - r w) W - 0.2 r sqrt(max(A, B)) NS((1 - m) G + m M)

NS(X) sets all singular values near 1: five times X = a X + (b X X^T + c (X X^T)^2) X, from X / |X|, in bfloat16. The
factor 0.2 sqrt(max(A, B)) gives the update the size of AdamW's, so that one rate serves both.

Source: torch.optim.Muon, after Jordan 2024; the factor of arXiv:2502.16982, section 2.2. arXiv:2509.26030 finds that
Muon learns rare facts better than AdamW does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from lab.model.config import BETA1, WEIGHT_DECAY, OptimConfig


class MuonAdamW(Optimizer):
    """Muon and AdamW as one optimizer: the parts share its groups and its state."""

    def __init__(self, muon: Muon, adamw: AdamW) -> None:
        self.muon, self.adamw = muon, adamw
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self.share()

    def share(self) -> None:
        """Give the parts the groups and the state that are this optimizer's."""
        first = len(self.muon.param_groups)
        self.muon.param_groups, self.adamw.param_groups = self.param_groups[:first], self.param_groups[first:]
        self.muon.state = self.adamw.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, which replaces groups and state."""
        super().load_state_dict(state_dict)
        self.share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step both, or neither where `found_inf`, which Muon must wait for, says so."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf = getattr(self, "found_inf", None)
        if found_inf is None or not found_inf.item():
            self.muon.step()
            self.adamw.step()
        return loss


def make_optimizer(model: nn.Module, optim: OptimConfig) -> Optimizer:
    """Build the optimizer of a model's parameters; matrices decay, vectors do not."""
    in_blocks = {id(p) for name, p in model.named_parameters() if "blocks." in name and p.ndim == 2}
    by_muon = in_blocks if not optim.shards else set()
    others = [p for p in model.parameters() if id(p) not in by_muon]
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = AdamW(groups, lr=optim.lr, betas=(BETA1, optim.beta2), fused=True)
    if not by_muon:
        return adamw
    matrices = [p for p in model.parameters() if id(p) in by_muon]
    return MuonAdamW(Muon(matrices, lr=optim.lr, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"), adamw)
