"""Answers tests by a model, prompts of one length side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer

from lab.probe.cases import Case
from lab.probe.interfaces import Generates

AnyCase = TypeVar("AnyCase", bound=Case)


def answered(
    model: Generates,
    tokenizer: Tokenizer,
    stop_id: int | None,
    cases: Iterable[tuple[int, AnyCase]],
    *,
    budget: int,
    rows: int,
    device: torch.device | str = "cpu",
) -> Iterator[list[tuple[int, AnyCase, str]]]:
    """Answer numbered cases, up to `rows` at a time, in `budget` tokens each; an answer ends before the stop token.

    Cases are drawn while the model runs, and every batch is returned before the next one begins.
    """
    for batch in side_by_side(cases, rows):
        prompts = np.stack([np.asarray(case.prompt_ids, dtype=np.int64) for _, case in batch])
        answers = model(torch.from_numpy(prompts).to(device), budget).tolist()
        texts = [tokenizer.decode(ids[: ids.index(stop_id)] if stop_id in ids else ids) for ids in answers]
        yield [(number, case, text) for (number, case), text in zip(batch, texts, strict=True)]


def side_by_side(cases: Iterable[tuple[int, AnyCase]], rows: int) -> Iterator[list[tuple[int, AnyCase]]]:
    """Gather cases of one length, as the key cache takes no padding."""
    waiting: dict[int, list[tuple[int, AnyCase]]] = {}
    for number, case in cases:
        length = len(case.prompt_ids)
        waiting.setdefault(length, []).append((number, case))
        if len(waiting[length]) == rows:
            yield waiting.pop(length)
    yield from waiting.values()
