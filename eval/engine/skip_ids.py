"""The distances, runs and f(i) of a skip method's ids at a target window, beside ids without gaps.

    f(i) = pairs of tokens whose ids are i apart       (arXiv:2410.18745, Eq. 2, over ids instead of places)

f(i) / f(0) is the share of tokens that see one at distance i. Ids without gaps give max(1 - i / n, 0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from eval.engine.matrix import LONGEST, FloatArray, IntArray, evenly, facts_text
from eval.engine.rows import percent, to_text
from lab.counts import PositionCounts
from lab.draw import beside, draw
from lab.schema import Section, Seed, Tests
from lab.skip import mean_distance, run_lengths, skip_positions_from_config
from lab.skip.rpes import Rpes, mean_run_length

POINTS = 512  # of a curve, at most
QUARTERS = (1, 2, 3)  # of the target window, at which f is printed
FIGURE_3 = {  # from the text below Figure 3 of arXiv:2409.00509, which does not print the figure's numbers
    "pose": "mean pair distance about half of LongRecipe's (128K window)",
    "rpes": "mean run length nearly 0",
    "longrecipe": "mean run length 88, mean pair distance about twice that of PoSE (128K window)",
}


@dataclass(frozen=True, kw_only=True)
class SkipOptions(Section):
    """Options of the command beside the parameters of a skip method."""

    n_tokens: Annotated[int, Ge(2), Le(LONGEST)]
    """Tokens n of every sample, two or more, or there is no pair of them."""
    samples: Tests = 100
    """Samples whose ids are drawn."""
    seed: Seed = 0
    """Seed of the draws."""

    @property
    def length(self) -> int:
        """Length of a sample's text in tokens."""
        return self.n_tokens


@dataclass(frozen=True, kw_only=True)
class SentenceOptions(SkipOptions):
    """Further options of a method that breaks ids between sentences."""

    sentence_tokens: Annotated[float, Ge(1)] = 24.0
    """Mean length of a sentence in tokens; lengths are drawn as geometric, each token the last of its sentence with
    probability 1 / mean, and the sample's end cuts the last one."""


@dataclass(frozen=True, eq=False)
class Measures:
    """Statistics of some samples of ids.

    Shapes: `shares`, f(i) / f(0), float64 (target_len,).
    """

    name: str
    mean_distance: float
    mean_run_length: float
    largest: int
    shares: FloatArray


def window_faults(config: Any, options: SkipOptions) -> list[str]:
    """List the target window's faults, as lines that begin with the field."""
    if config.target_len > LONGEST:
        rule = f"must be <= {LONGEST}, as f is held in memory; lower it and n_tokens alike"
        return [f"target_len={config.target_len}: {rule}"]
    faults: list[str] = config.length_faults(options.n_tokens)
    return faults


def drawn_sentences(n_tokens: int, mean: float, generator: np.random.Generator) -> IntArray:
    """Draw sentence lengths that fill a sample, geometric with the given mean but for the last.

    Example:
        >>> drawn_sentences(3, 1.0, np.random.default_rng(0))
        array([1, 1, 1])
    """
    ends = generator.random(n_tokens) < 1 / mean
    ends[-1] = True
    return np.diff(np.flatnonzero(ends), prepend=-1)


def samples(config: Any, options: SkipOptions) -> Iterator[IntArray]:
    """Draw the ids of every sample."""
    generator = np.random.default_rng(options.seed)
    for _ in range(options.samples):
        lengths = None
        if isinstance(options, SentenceOptions):
            lengths = drawn_sentences(options.n_tokens, options.sentence_tokens, generator)
        yield skip_positions_from_config(config, options.n_tokens, sentence_lengths=lengths, generator=generator)


def measure(name: str, drawn: Iterable[IntArray], target_len: int) -> Measures:
    """Measure samples one by one: the mean over samples of their mean distances, the mean over all their runs."""
    counts = PositionCounts(target_len)
    distances, runs, largest = [], [], 0
    for ids in drawn:
        counts.add_positions(ids, np.zeros_like(ids), mask="causal")
        distances.append(mean_distance(ids))
        runs.append(run_lengths(ids))
        largest = max(largest, int(ids[-1]))
    frequency = counts.frequency()
    shares = frequency / frequency[0]
    return Measures(name, float(np.mean(distances)), float(np.concatenate(runs).mean()), largest, shares)


def compared(config: Any, options: SkipOptions) -> list[Measures]:
    """Measure the method's ids, and ids without gaps of the sample's and of the target window's length."""
    n, target_len = options.n_tokens, config.target_len
    contiguous = [measure(f"0 .. {length - 1}", [np.arange(length)], target_len) for length in (n, target_len)]
    return [measure(config.method, samples(config, options), target_len), *contiguous]


def table(columns: list[Measures]) -> str:
    """Format the measures, a column for each kind of ids."""
    target_len = len(columns[0].shares)
    quarters = dict.fromkeys(quarter * target_len // 4 for quarter in QUARTERS)
    rows = {
        "mean pair distance": [f"{c.mean_distance:.1f}" for c in columns],
        "mean run length": [f"{c.mean_run_length:.2f}" for c in columns],
        "largest id": [f"{c.largest}" for c in columns],
        **{f"f({i}) / f(0)": [percent(float(c.shares[i])) for c in columns] for i in quarters},
    }
    names = [c.name for c in columns]
    return to_text([{"ids": row} | dict(zip(names, values, strict=True)) for row, values in rows.items()])


def records(columns: list[Measures]) -> list[dict[str, Any]]:
    """Make a result for each kind of ids."""
    names = ("name", "mean_distance", "mean_run_length", "largest")
    return [{"metric": "skip_ids", **{name: getattr(column, name) for name in names}} for column in columns]


def heading(config: Any, options: SkipOptions) -> str:
    """Name the method, the samples and their sentences."""
    lines = {
        "method": f"{config.method} --target_len={config.target_len}",
        "samples": f"{options.samples} of {options.n_tokens} tokens, seed {options.seed}",
    }
    if isinstance(options, SentenceOptions):
        lines["sentences"] = f"geometric lengths, {options.sentence_tokens:g} tokens in the mean"
    if config.target_len == options.n_tokens:
        lines["gaps"] = "none, for target_len is n_tokens; raise it"
    return facts_text(lines)


def remarks(config: Any, options: SkipOptions) -> str:
    """List what theory and the paper's Figure 3 predict."""
    lines = {}
    if isinstance(config, Rpes):
        expected = mean_run_length(config, options.n_tokens)
        lines["mean run length in theory"] = f"1 / (1 - (n - 1) / T) = {expected:.2f}"
    return facts_text(lines | {"the paper on its Figure 3": FIGURE_3[config.method]})


def skip_chart(config: Any, options: SkipOptions, measures: Sequence[Measures]) -> Any:
    """Draw f(i) / f(0) of the method beside that of ids without gaps, and the ids of the first sample."""
    target_len = config.target_len
    at = evenly(target_len, POINTS)
    rows = [
        {"i": int(i), "share": share, "ids": one.name}
        for one in measures
        for i, share in zip(at, one.shares[at], strict=True)
    ]
    sample = next(samples(config, options))
    tokens = evenly(len(sample), POINTS)
    ids = [{"token": int(token), "id": int(sample[token]), "ids": config.method} for token in tokens]
    ids += [{"token": int(token), "id": int(token), "ids": f"0 .. {len(sample) - 1}"} for token in tokens]
    words = f"{config.method}: {options.samples:,} samples of {options.n_tokens:,} tokens"
    if isinstance(options, SentenceOptions):
        words += f" in sentences of {options.sentence_tokens:g} on average"
    return beside(
        draw(
            rows,
            "i",
            "share",
            "ids",
            percent=True,
            marks=False,
            title="share of the tokens that see one at distance i, f(i) / f(0)",
            x_title="relative position i (tokens)",
            y_title="",
        ),
        draw(ids, "token", "id", "ids", marks=False, title="the id of every token of the first sample"),
        title=f"{words}, target window {target_len:,}",
    )
