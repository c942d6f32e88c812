"""All that evaluation knows of a model."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from lab.model.segments import Segments


class Generates(Protocol):
    """A model that continues prompts greedily."""

    def __call__(self, prompts: Tensor, n_tokens: int) -> Tensor:
        """Continue int64 (B, T) by up to `n_tokens` tokens: int64 (B, at most n_tokens)."""
        ...


class Scores(Protocol):
    """A model that scores packed text."""

    def __call__(self, tokens: Tensor, targets: Tensor, segments: Segments) -> Tensor:
        """Sum the next-token loss over the scored targets of one packed row, in nats."""
        ...
