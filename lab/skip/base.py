"""The base class of skip methods: a target window and a draw of position ids; and the checks of a sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from lab.schema import Positive, Section, is_whole

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Skip(Section, ABC):
    """The parameters of a skip method, and its draw of ids."""

    target_len: Positive
    """Target window T in tokens, which all ids stay below; the paper trains on samples of 30% of it."""

    needs_sentences: ClassVar[bool] = False
    """Whether ids break between sentences only, so that their lengths must be known."""
    of_training: ClassVar[tuple[str, ...]] = ()
    """Settings of the choice of samples, which do not change the ids of a given sample."""

    @property
    @abstractmethod
    def method(self) -> str:
        """Name of the method in the config."""

    @abstractmethod
    def position_ids(
        self, n_tokens: int, sentence_lengths: IntArray | None, generator: np.random.Generator
    ) -> IntArray:
        """Draw strictly increasing ids in 0 .. target_len - 1 for a sample that was checked.

        Shapes: sentence_lengths int64 (n_sentences,) -> int64 (n_tokens,).
        """

    def length_faults(self, n_tokens: int) -> list[str]:
        """List the parameters' faults for a sample of `n_tokens`, as lines that begin with the field."""
        if self.target_len < n_tokens:
            return [
                f"target_len={self.target_len}: must be >= n_tokens={n_tokens}, or the ids do not fit below it (the "
                "paper trains on samples of 30% of the target window); raise it or shorten the sample"
            ]
        return []

    @property
    def selects(self) -> bool:
        """Whether a sample consists of sentences of a longer text."""
        return False


def sample_faults(config: Skip, n_tokens: Any, sentence_lengths: Any, generator: Any) -> list[str]:
    """List the faults of the other arguments, as lines that begin with the argument."""
    faults = []
    if not is_whole(n_tokens) or n_tokens < 1:
        faults.append(f"n_tokens={n_tokens}: must be a whole number >= 1; leave empty samples out")
    else:
        faults += config.length_faults(n_tokens)
        faults += sentence_faults(config, n_tokens, sentence_lengths)
    if not isinstance(generator, np.random.Generator):
        remedy = "pass numpy.random.default_rng(seed)"
        faults.append(f"generator={generator}: must be a numpy.random.Generator; {remedy}")
    return faults


def sentence_faults(config: Skip, n_tokens: int, sentence_lengths: Any) -> list[str]:
    """List the faults of the sentence lengths, as lines that begin with the argument."""
    name = "sentence_lengths"
    if not config.needs_sentences:
        rule = f"would be ignored, {config.method} does not look at sentences; leave it out"
        return [] if sentence_lengths is None else [f"{name}: {rule}"]
    if sentence_lengths is None:
        rule = f"must be given, {config.method} breaks ids between sentences only; see lab.skip.split_sentences"
        return [f"{name}=None: {rule}"]
    try:
        lengths = np.asarray(sentence_lengths)
    except ValueError:  # rows of different lengths
        lengths = np.empty((0, 0))
    if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):
        return [f"{name}: must be one row of whole numbers, tokens of each sentence; see lab.skip.split_sentences"]
    wrong = np.flatnonzero(lengths < 1)
    if wrong.size:
        return [f"{name}[{wrong[0]}]={lengths[wrong[0]]}: must be >= 1; leave empty sentences out"]
    if lengths.sum() != n_tokens:
        rule = f"must be n_tokens={n_tokens}, as every token is in one sentence; split this sample"
        return [f"sum({name})={int(lengths.sum())}: {rule}"]
    return []
