"""Tests with known answers, and how a model answers them: prompts of one length side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from lab.errors import DataError
from lab.probe.protocol import Generates


@dataclass(frozen=True, eq=False)
class Case:
    """A prompt whose answer is known. Units: `prompt_ids` tokens."""

    prompt_ids: Sequence[int] | npt.NDArray[Any]

    @property
    def prompt_hash(self) -> str:
        """Name the prompt by the SHA-256 of its ids, 16 hex digits."""
        return hashlib.sha256(np.asarray(self.prompt_ids, dtype="<i8").tobytes()).hexdigest()[:16]


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


def check_spelling(tokenizer: Tokenizer, text: str, answers: Sequence[str], passes: Callable[[str], bool]) -> None:
    """Refuse a tokenizer in which `text`, which holds the right answers, could not be answered.

    One that sets digits apart is an example. Raises: DataError.
    """
    spelled = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids)
    if not passes(spelled):
        rule = f"reads {', '.join(answers)!r} back as {spelled!r}, so that no answer could pass"
        raise DataError(f"tokenizer.json: {rule}; give the model's own tokenizer")
