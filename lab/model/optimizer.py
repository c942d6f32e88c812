"""The optimizer of a decoder: AdamW, or Muon for the matrices of the blocks and AdamW for all else.

Muon updates a matrix W (A, B), whose gradient is G, by its momentum M, at rate r with weight decay w and m = 0.95:

    M = m M + (1 - m) G
    W = (1 - r w) W - 0.2 r sqrt(max(A, B)) NS((1 - m) G + m M)

NS(X) sets all singular values near 1: five times X = a X + (b X X^T + c (X X^T)^2) X, from X / |X|, in bfloat16. The
factor 0.2 sqrt(max(A, B)) gives the update the size of AdamW's, so that one rate serves both.

CompleteP scales what AdamW does to a model of m_N times the width and m_L times the depth of a base, so that the rate
of the base serves it. The paper multiplies what blocks add by 1 / m_L, and logits by 1 / m_N. Here these are factors of
the matrices before them, and the model stays as it is: such a matrix begins as much smaller, its rate is as much lower,
and its weight decay and epsilon are as much higher.

                        first variance        rate          weight decay   epsilon
    embedding           s^2                   r             w              e
    norms, biases       -                     r             0              e, in blocks e / (m_N m_L)
    matrices of blocks  s^2 / m_N             r / m_N       w m_N          e / (m_N m_L)
      added to x        s^2 / (m_N m_L^2)     r / (m_N m_L) w m_N m_L      e / m_N
    head                s^2 / m_N^2           r / m_N       w m_N          e m_N

Source: torch.optim.Muon, after Jordan 2024; the factor of arXiv:2502.16982, section 2.2. arXiv:2509.26030 finds that
Muon learns rare facts better than AdamW does. CompleteP: arXiv:2505.01618, Table 1 with alpha = 1; keep the size of
heads in a ladder of sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from lab.model.config import BETA1, EPSILON, WEIGHT_DECAY, DecoderConfig, OptimConfig
from lab.model.decoder import Decoder


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


def make_optimizer(decoder: Decoder, optim: OptimConfig) -> Optimizer:
    """Build the optimizer of a decoder; the first group has the rate of `optim` itself."""
    matrices, groups = [], dict[tuple[float, float, float], list[nn.Parameter]]()
    for name, parameter in decoder.named_parameters():
        if not optim.shards and name.startswith("blocks.") and parameter.ndim == 2:
            matrices.append(parameter)
        else:
            groups.setdefault(scales(decoder.cfg, name, parameter.ndim), []).append(parameter)
    adamw = AdamW(
        [
            {"params": members, "lr": rate * optim.lr, "weight_decay": decay * WEIGHT_DECAY, "eps": epsilon * EPSILON}
            for (rate, decay, epsilon), members in groups.items()
        ],
        betas=(BETA1, optim.beta2),
        fused=True,
    )
    if not matrices:
        return adamw
    return MuonAdamW(Muon(matrices, lr=optim.lr, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"), adamw)


def scales(cfg: DecoderConfig, name: str, ndim: int) -> tuple[float, float, float]:
    """Return the factors on rate, weight decay and epsilon of a parameter; vectors do not decay.

    Example:
        >>> from lab.model.config import BaseShape
        >>> wide = DecoderConfig(64, 6, 4, 4, 96, 500, False, base=BaseShape(d_model=16, n_layers=2))
        >>> scales(wide, "blocks.0.attention.q.weight", 2), scales(wide, "blocks.0.attention.out.weight", 2)
        ((0.25, 4.0, 0.08333333333333333), (0.08333333333333333, 12.0, 0.25))
    """
    m_n, m_l = cfg.ratios
    if name == "head.weight":
        return 1 / m_n, m_n, m_n
    if not name.startswith("blocks."):
        return 1.0, float(ndim > 1), 1.0
    if name.endswith("out.weight"):
        return 1 / (m_n * m_l), m_n * m_l, 1 / m_n
    return (1 / m_n, m_n, 1 / (m_n * m_l)) if ndim > 1 else (1.0, 0.0, 1 / (m_n * m_l))
