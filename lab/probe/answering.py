"""Answers tests by a model, prompts of one length side by side."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from lab.model.generate import Ended
from lab.probe.needles import Case

AnyCase = TypeVar("AnyCase", bound=Case)
Decided = Callable[[AnyCase, str], bool]
LOOK_EVERY = 8  # new tokens between two looks at what the rows of a batch have answered


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


def answered(
    model: Generates,
    tokenizer: Tokenizer,
    stop_id: int | None,
    cases: Iterable[tuple[int, AnyCase]],
    *,
    budget: int,
    rows: int,
    device: torch.device | str = "cpu",
    decided: Decided[AnyCase] | None = None,
) -> Iterator[list[tuple[int, AnyCase, str]]]:
    """Answer numbered cases, up to `rows` at a time, in `budget` tokens each; an answer ends before the stop token.

    With `decided`, an answer ends with the token after which `decided` holds, and the model may end it there. What
    holds for a text must hold for every text that begins with it.

    Cases are drawn while the model runs, and every batch is returned before the next one begins.
    """
    for batch in side_by_side(cases, rows):
        drawn = [case for _, case in batch]
        prompts = torch.from_numpy(np.stack([np.asarray(case.prompt_ids, dtype=np.int64) for case in drawn]))
        generate = model if decided is None else partial(model, ended=partial(ended, tokenizer, decided, drawn))
        answers = generate(prompts.to(device), budget).tolist()
        ids = [row[: row.index(stop_id)] if stop_id in row else row for row in answers]
        yield [
            (number, case, text_of(tokenizer, row, decided and partial(decided, case)))
            for (number, case), row in zip(batch, ids, strict=True)
        ]


def ended(
    tokenizer: Tokenizer, decided: Decided[AnyCase], cases: Sequence[AnyCase], answers: Tensor, rows: Tensor
) -> Tensor:
    """Find which answers are decided, at every LOOK_EVERY-th token: int64 (rows, n), int64 (rows,) -> bool (rows,)."""
    if answers.shape[1] % LOOK_EVERY:
        return torch.zeros(len(rows), dtype=torch.bool)
    texts = tokenizer.decode_batch(answers.tolist())
    return torch.tensor([decided(cases[row], text) for row, text in zip(rows.tolist(), texts, strict=True)])


def text_of(tokenizer: Tokenizer, ids: list[int], decided: Callable[[str], bool] | None) -> str:
    """Decode an answer up to the token after which it is decided, if it is; the same wherever generation ended it."""
    text: str = tokenizer.decode(ids)
    if decided is not None and decided(text):
        last = bisect_left(range(len(ids)), True, key=lambda place: decided(tokenizer.decode(ids[: place + 1])))
        text = tokenizer.decode(ids[: last + 1])
    return text


def side_by_side(cases: Iterable[tuple[int, AnyCase]], rows: int) -> Iterator[list[tuple[int, AnyCase]]]:
    """Gather cases of one length, as the key cache takes no padding."""
    waiting: dict[int, list[tuple[int, AnyCase]]] = {}
    for number, case in cases:
        length = len(case.prompt_ids)
        waiting.setdefault(length, []).append((number, case))
        if len(waiting[length]) == rows:
            yield waiting.pop(length)
    yield from waiting.values()
