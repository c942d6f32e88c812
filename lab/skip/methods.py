"""The table of skip methods, and the functions that give a sample its ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.errors import ConfigError
from lab.schema import look_up
from lab.skip import longrecipe, pose, rpes
from lab.skip.base import IntArray, sample_faults

SKIP_METHODS = {
    "pose": pose,
    "rpes": rpes,
    "longrecipe": longrecipe,
}


def skip_positions(
    method: str,
    n_tokens: int,
    *,
    target_len: int,
    sentence_lengths: Sequence[int] | IntArray | None = None,
    generator: np.random.Generator | None = None,
) -> IntArray:
    """Draw position ids for a sample: strictly increasing in 0 .. target_len - 1.

    `sentence_lengths`, the tokens of each sentence, is for "longrecipe" alone; `generator` must be given.

    Shapes: int64 (n_tokens,).
    Raises: ConfigError with a line for every wrong argument.
    """
    config = look_up(SKIP_METHODS, method, "skip.method").Config(target_len=target_len)
    return skip_positions_from_config(config, n_tokens, sentence_lengths=sentence_lengths, generator=generator)


def skip_positions_from_config(
    config: Any,
    n_tokens: int,
    *,
    sentence_lengths: Sequence[int] | IntArray | None = None,
    generator: np.random.Generator | None = None,
) -> IntArray:
    """Draw position ids by the method of a config section, as `skip_positions` does by name.

    Shapes: int64 (n_tokens,).
    Raises: ConfigError with a line for every wrong argument.
    """
    faults = sample_faults(config, n_tokens, sentence_lengths, generator)
    if faults:
        raise ConfigError(*faults)
    lengths = None if sentence_lengths is None else np.asarray(sentence_lengths, dtype=np.int64)
    ids: IntArray = SKIP_METHODS[config.method].position_ids(config, n_tokens, lengths, generator)
    return ids
