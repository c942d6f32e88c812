"""The table of skip methods, and the functions that check a sample and draw its ids."""

from collections.abc import Sequence
from numbers import Integral
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from pydantic import TypeAdapter

from lab.errors import ConfigError, look_up
from lab.schema import OneOf
from lab.skip.base import IntArray, Skip
from lab.skip.longrecipe import LongRecipe
from lab.skip.pose import Pose
from lab.skip.rpes import Rpes

SKIP_METHODS: dict[str, type[Skip]] = {"pose": Pose, "rpes": Rpes, "longrecipe": LongRecipe}

LENGTHS = TypeAdapter(list[Annotated[int, Ge(1)]])

SkipConfig = Annotated[Any, OneOf(Skip, SKIP_METHODS)]


def skip_positions(
    method: str | Skip,
    n_tokens: int,
    *,
    target_len: int | None = None,
    sentence_lengths: Sequence[int] | IntArray | None = None,
    generator: np.random.Generator | None = None,
) -> IntArray:
    """Draw position ids for a sample: strictly increasing in 0 .. target_len - 1.

    `method` is a name, which needs `target_len`, or a config section, which has its own. `sentence_lengths`, the tokens
    of each sentence, is for "longrecipe" alone; `generator` must be given.

    Shapes: int64 (n_tokens,).
    Raises: ConfigError with a line for every wrong argument.
    """
    faults = []
    if isinstance(method, Skip):
        config = method
        if target_len is not None:
            faults.append(f"target_len={target_len}: would be ignored, the section has its own; leave it out")
    else:
        config = look_up(SKIP_METHODS, method, "skip.method")(target_len=target_len)  # type: ignore[arg-type]
    if not isinstance(n_tokens, Integral) or isinstance(n_tokens, bool) or n_tokens < 1:
        faults.append(f"n_tokens={n_tokens}: must be a whole number >= 1; leave empty samples out")
    else:
        faults += config.length_faults(n_tokens) + sentence_faults(config, n_tokens, sentence_lengths)
    if not isinstance(generator, np.random.Generator):
        remedy = "pass numpy.random.default_rng(seed)"
        faults.append(f"generator={generator}: must be a numpy.random.Generator; {remedy}")
    if faults or generator is None:
        raise ConfigError(*faults)
    lengths = None if sentence_lengths is None else np.asarray(sentence_lengths, dtype=np.int64)
    return config.position_ids(n_tokens, lengths, generator)


def sentence_faults(config: Skip, n_tokens: int, sentence_lengths: Any) -> list[str]:
    """List the faults of the sentence lengths, as lines that begin with the argument."""
    if not config.needs_sentences:
        rule = f"would be ignored, {config.method} does not look at sentences; leave it out"
        return [] if sentence_lengths is None else [f"sentence_lengths: {rule}"]
    try:
        lengths = LENGTHS.validate_python(np.asarray(sentence_lengths).tolist(), strict=True)
    except ValueError:  # of numpy, for rows of different lengths, or of pydantic
        lengths = []
    if sum(lengths) == n_tokens:
        return []
    rule = f"must be whole numbers >= 1 that sum to n_tokens={n_tokens}, as every token is in one sentence"
    return [f"sentence_lengths: {rule}; see lab.skip.sentences.split_sentences"]
