"""The interfaces through which evaluation uses a model."""

from __future__ import annotations

from typing import Protocol

from tokenizers import Tokenizer
from torch import Tensor

from lab.model.attention.segments import Segments
from lab.model.generate import Ended


class Generates(Protocol):
    """A model that continues prompts greedily."""

    def __call__(self, prompts: Tensor, n_tokens: int, ended: Ended | None = None) -> Tensor:
        """Continue int64 (B, T) by up to `n_tokens` tokens: int64 (B, at most n_tokens); `ended` may end rows early."""
        ...


class Retrieves(Protocol):
    """A model that continues prompts and scores given continuations."""

    @property
    def generate(self) -> Generates:
        """Continue prompts greedily."""
        ...

    def losses(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Compute each target's loss in nats, 0 where a target is below 0: int64 (B, T) twice -> float (B, T)."""
        ...


class Answers(Protocol):
    """A model that answers in words."""

    @property
    def generate(self) -> Generates:
        """Continue prompts greedily."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of prompts and answers."""
        ...

    @property
    def stop_id(self) -> int | None:
        """Token that ends a document, if any does."""
        ...

    @property
    def vocab_size(self) -> int:
        """Tokens that the model knows."""
        ...


class Scores(Protocol):
    """A model that scores packed text."""

    def __call__(self, tokens: Tensor, targets: Tensor, segments: Segments) -> Tensor:
        """Compute each target's loss in nats, 0 where it is not scored, of one packed row: int64 (1, T) -> (1, T)."""
        ...
