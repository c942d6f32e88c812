"""Tests with known answers, and whether a tokenizer can express the answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from lab.errors import DataError


@dataclass(frozen=True, eq=False)
class Case:
    """A prompt whose answer is known. Units: `prompt_ids` tokens."""

    prompt_ids: Sequence[int] | npt.NDArray[Any]

    @property
    def prompt_hash(self) -> str:
        """Name the prompt by the SHA-256 of its ids, 16 hex digits."""
        return hashlib.sha256(np.asarray(self.prompt_ids, dtype="<i8").tobytes()).hexdigest()[:16]


def check_spelling(tokenizer: Tokenizer, text: str, answers: Sequence[str], passes: Callable[[str], bool]) -> None:
    """Refuse a tokenizer in which `text`, which holds the right answers, could not be answered.

    For example one that decodes digits with spaces. Raises: DataError.
    """
    spelled = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids)
    if not passes(spelled):
        rule = f"reads {', '.join(answers)!r} back as {spelled!r}, so that no answer could pass"
        raise DataError(f"tokenizer.json: {rule}; give the model's own tokenizer")
