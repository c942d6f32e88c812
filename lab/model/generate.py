"""Greedy generation with a key cache, for a batch of prompts of one length."""

from __future__ import annotations

import torch
from torch import Tensor

from lab.model.decoder import Decoder


@torch.no_grad()
def greedy(model: Decoder, prompts: Tensor, n_tokens: int, stop_id: int | None = None) -> Tensor:
    """Continue every prompt by the most likely token, `n_tokens` times or until every row holds `stop_id`.

    The weights are used as they are; no random number is drawn and no mode is changed, so that generating in the
    middle of training leaves the training as it was.

    Shapes: prompts int64 (B, T) -> int64 (B, at most n_tokens). What a row holds after its `stop_id` means nothing.
    """
    cache = model.new_cache(len(prompts), prompts.shape[1] + n_tokens)
    logits = model(prompts, cache=cache, last_only=True)
    answer = logits[:, -1].argmax(-1, keepdim=True)
    while answer.shape[1] < n_tokens:
        if stop_id is not None and bool((answer == stop_id).any(1).all()):
            break
        logits = model(answer[:, -1:], cache=cache, last_only=True)
        answer = torch.cat([answer, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return answer
