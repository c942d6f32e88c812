"""The distances, runs and f(i) of a skip method's ids at a target window, beside ids without gaps.

    f(i) = pairs of tokens whose ids are i apart       (arXiv:2410.18745, Eq. 2, over ids instead of places)

f(i) / f(0) is the share of tokens that see one at distance i. Ids without gaps give max(1 - i / n, 0). Figure 3 of
arXiv:2409.00509 compares methods so. Its numbers are not printed. The text names a mean run of 88 for LongRecipe and
nearly 0 for RPES at a window of 128K. It says that LongRecipe's mean distance is about twice PoSE's.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from eval.engine.lengths import FloatArray, IntArray
from eval.engine.rows import Row, to_text
from lab import errors, schema, skip
from lab.counts import PositionCounts
from lab.skip.base import Skip
from lab.skip.sentences import split_sentences

LONGEST = 4_194_304  # tokens of a text or window; f, or a row of the matrix, is held in memory


@dataclass(frozen=True, kw_only=True)
class SkipOptions(schema.Section):
    """Options of the command beside the parameters of a skip method."""

    n_tokens: Annotated[int, Ge(2), Le(LONGEST)]
    """Tokens n of every sample, two or more, or there is no pair of them."""
    samples: schema.Tests = 100
    """Samples whose ids are drawn."""
    seed: schema.Seed = 0
    """Seed of the draws."""
    sentence_tokens: Annotated[float, Ge(1)] = 24.0
    """Mean length of a sentence in tokens, for methods that break ids between sentences; lengths are drawn as
    geometric, each token the last of its sentence with probability 1 / mean, and the sample's end cuts the last one."""


def show_skip(config: Skip, options: SkipOptions) -> tuple[str, list[Row]]:
    """Compare the method's ids with ids without gaps, of the sample's and of the target window's length.

    Raises: ConfigError for a target window that is too long.
    """
    n, target_len = options.n_tokens, config.target_len
    if target_len > LONGEST:
        rule = f"must be <= {LONGEST}, as f is held in memory; lower it and n_tokens alike"
        raise errors.ConfigError(f"--target_len={target_len}: {rule}")
    measured = {config.method: measure(samples(config, options), target_len)}
    measured |= {f"0 .. {length - 1}": measure([np.arange(length)], target_len) for length in (n, target_len)}
    rows = [{"metric": "skip_ids", "name": name, **row} for name, (row, _) in measured.items()]
    quarters = dict.fromkeys(quarter * target_len // 4 for quarter in (1, 2, 3))
    cells = [
        {"ids": name, **row, **{f"f({i}) / f(0)": f"{100 * shares[i]:.3g}%" for i in quarters}}
        for name, (row, shares) in measured.items()
    ]
    title = f"{config.method}: {options.samples:,} samples of {n:,} tokens, target window {target_len:,}"
    if config.needs_sentences:
        title += f", sentences of {options.sentence_tokens:g} tokens on average"
    table = to_text(cells, {"mean_distance": ".1f", "mean_run_length": ".2f"})
    return f"{title}\n\n{table}", rows


def drawn_sentences(n_tokens: int, mean: float, generator: np.random.Generator) -> IntArray:
    """Draw sentence lengths that fill a sample, geometric with the given mean but for the last.

    Example:
        >>> drawn_sentences(3, 1.0, np.random.default_rng(0))
        array([1, 1, 1])
    """
    ends = (generator.random(n_tokens) < 1 / mean).astype(np.int64)
    return split_sentences(ends, np.array([False, True]))


def samples(config: Skip, options: SkipOptions) -> Iterator[IntArray]:
    """Draw the ids of every sample."""
    generator = np.random.default_rng(options.seed)
    for _ in range(options.samples):
        lengths = None
        if config.needs_sentences:
            lengths = drawn_sentences(options.n_tokens, options.sentence_tokens, generator)
        yield skip.skip_positions(config, options.n_tokens, sentence_lengths=lengths, generator=generator)


def measure(drawn: Iterable[IntArray], target_len: int) -> tuple[Row, FloatArray]:
    """Measure samples one by one: the mean over samples of their mean distances, the mean over all their runs.

    Shapes: also f(i) / f(0), float64 (target_len,).
    """
    counts = PositionCounts(target_len)
    distances = []
    runs = []
    largest = 0
    for ids in drawn:
        counts.add_positions(ids, np.zeros_like(ids), mask="causal")
        distances.append(skip.mean_distance(ids))
        runs.append(skip.run_lengths(ids))
        largest = max(largest, int(ids[-1]))
    f = counts.frequency()
    row = {"mean_distance": float(np.mean(distances)), "mean_run_length": float(np.concatenate(runs).mean())}
    return {**row, "largest": largest}, f / f[0]
