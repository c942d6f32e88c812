"""How spread out attention is: its entropy by layer and by the number of tokens that a query sees.

    entropy = -sum_j p_j ln p_j,   in nats, between 0 (one key has it all) and ln n (uniform over n visible keys)

p are the attention weights of one query in one head, under the model's own position methods and their factors on the
logits. A query at 0-based position m sees n = m + 1 tokens.

Source: arXiv:2401.07004, section 3.1, Eq. 4 (which leaves out the minus sign) and Figure 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lab.model.attention.inspection import BLOCK_LOGITS, LayerLogits, layer_inputs
from lab.model.decoder import Decoder


@torch.no_grad()
def attention_entropy(decoder: Decoder, tokens: Tensor, *, most: int = BLOCK_LOGITS) -> Tensor:
    """Compute the mean over heads of every query's entropy; at most `most` logits are held at one time.

    Shapes: tokens int64 (B, T); returns float64 (B, n_layers, T), column m for the queries that see m + 1 tokens.
    """
    layers = []
    for inputs in layer_inputs(decoder, tokens):
        logits = LayerLogits(inputs)
        blocks = [entropy(logits.block(part)).mean(1) for part in logits.blocks(most)]
        layers.append(torch.cat(blocks, dim=-1))
    return torch.stack(layers, dim=1)


def entropy(logits: Tensor) -> Tensor:
    """Compute the entropy of the softmax over the last axis, added up in float64.

    Example:
        >>> [round(x, 4) for x in entropy(torch.tensor([[0.0, 0.0], [0.0, float("-inf")]])).tolist()]
        [0.6931, 0.0]
    """
    terms: Tensor = torch.special.entr(logits.softmax(-1))
    return terms.sum(-1, dtype=torch.float64).clamp(min=0.0)
