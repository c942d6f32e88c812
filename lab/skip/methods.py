"""The table of skip methods, and the functions that draw the ids of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Union

import numpy as np
from pydantic import Field

from lab.errors import ConfigError, look_up
from lab.skip.base import IntArray, Skip, sample_faults
from lab.skip.longrecipe import LongRecipe
from lab.skip.pose import Pose
from lab.skip.rpes import Rpes

SKIP_METHODS: dict[str, type[Skip]] = {
    "pose": Pose,
    "rpes": Rpes,
    "longrecipe": LongRecipe,
}

if TYPE_CHECKING:
    SkipConfig = Any
else:  # the table is the one place that lists the methods
    SkipConfig = Annotated[Union[tuple(SKIP_METHODS.values())], Field(discriminator="method")]  # noqa: UP007


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
    config = look_up(SKIP_METHODS, method, "skip.method")(target_len=target_len)
    return skip_positions_from_config(config, n_tokens, sentence_lengths=sentence_lengths, generator=generator)


def skip_positions_from_config(
    config: Skip,
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
    if faults or generator is None:
        raise ConfigError(*faults)
    lengths = None if sentence_lengths is None else np.asarray(sentence_lengths, dtype=np.int64)
    return config.position_ids(n_tokens, lengths, generator)
