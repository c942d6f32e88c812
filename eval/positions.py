"""Show the relative positions of a text under a method, and how often training has seen them.

    probe-lab positions METHOD --length=TOKENS [--parameter=value ...] [--plot] [-o FOLDER]
    probe-lab positions SKIP --n_tokens=TOKENS --target_len=TOKENS [--option=value ...] [-o FOLDER]

Of a distance method it prints the matrix of relative positions, rows queries and columns keys, and what is in it:

    probe-lab positions string --shift 3 --window 0 --length 9
    probe-lab positions dca --train_len=10 --chunk=6 --length=12
    probe-lab positions string --shift=43008 --length=131072

--plot also draws it, next to the same matrix coloured by how often training attends across each position. Training
is documents of SlimPajama's lengths, cut every --length tokens:

    probe-lab positions string --shift=683 --length=2048 --plot

A skip method gives a short sample ids inside a long target window. The command prints how far apart tokens are, how
long ids go on without a gap, and f at quarters of the window. These are pairs of tokens whose ids are i apart, f(i)
(arXiv:2410.18745, Eq. 2, over ids instead of places). f(i) / f(0) is the share of tokens that see one at distance i.
The last rows are ids without gaps, which give max(1 - i / n, 0). Figure 3 of arXiv:2409.00509 compares methods so,
without numbers. Its text has, at a window of 128K, a mean run of 88 for LongRecipe and nearly 0 for RPES, and a mean
distance of LongRecipe that is about 2x PoSE's:

    probe-lab positions pose --n_tokens 2048 --target_len 8192
    probe-lab positions longrecipe --n_tokens=24000 --target_len=80000 --sentence_tokens=86

Parameters may follow METHOD after a colon: string:shift=3,window=0. The picture is in results/, or in FOLDER of -o.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from eval.engine import command
from eval.engine.lengths import natural_lengths
from eval.engine.text import Result, to_text
from lab import skip
from lab.core import chart, schema
from lab.core.arguments import parse_method, read_options, settings_lines, split_options
from lab.core.command import NOTHING_WRITTEN, start
from lab.core.errors import ConfigError, look_up
from lab.core.types import FloatArray, IntArray, Row
from lab.counts import PositionCounts
from lab.data.selecting import split_sentences
from lab.positions import DISTANCE_METHODS, Distance
from lab.skip import Skip

WHOLE = 40  # tokens of the longest matrix that is printed
LONGEST = 4_194_304  # tokens of a text or window; f, or a row of the matrix, is held in memory


class MatrixOptions(schema.Section):
    """Options of the command, in addition to a distance method's own parameters."""

    length: Annotated[int, Ge(1), Le(LONGEST)]
    """Length of the text in tokens."""


class SkipOptions(schema.Section):
    """Options of the command, in addition to a skip method's own parameters."""

    n_tokens: Annotated[int, Ge(2), Le(LONGEST)]
    """Tokens n of every sample, two or more, or there is no pair of them."""
    samples: schema.Tests = 100
    """Samples of ids."""
    seed: schema.Seed = 0
    """Seed of the samples."""
    sentence_tokens: Annotated[float, Ge(1)] = 24.0
    """Mean length of a sentence in tokens, for methods that break ids between sentences; lengths are drawn as
    geometric, each token the last of its sentence with probability 1 / mean, and the sample's end cuts the last one."""


METHODS: dict[str, type[Any]] = {**DISTANCE_METHODS, **skip.SKIP_METHODS}


def show_method(request: command.Request) -> Result:
    """Show a method's matrix, or statistics of a skip method's ids."""
    named = parse_method(str(request.model), "METHOD")
    kind = look_up(METHODS, named.pop("method"), "METHOD")
    is_skip = kind in skip.SKIP_METHODS.values()
    options, parameters = split_options(SkipOptions if is_skip else MatrixOptions, {**named, **request.options})
    config = read_options(kind, parameters)
    length = options.n_tokens if is_skip else options.length
    errors = [f"--{error}" for error in config.length_errors(length)]
    if is_skip and request.plots:
        errors.append("--plot: a skip method has no picture; leave it out")
    if errors:
        raise ConfigError(*errors)
    text, rows = (show_skip if is_skip else show_matrix)(config, options)
    return request.save(f"positions-{config.method}-{length}", text, rows, partial(matrix_chart, config, options))


def show_matrix(distance: Distance, options: MatrixOptions) -> tuple[str, list[Row]]:
    """Show a distance method's matrix, and what is in it."""
    length = options.length
    held = list_values(distance, length)
    # Parameters that are off are omitted.
    parameters = {name: value for name, value in asdict(distance).items() if value is not None and name != "method"}
    row: Row = {"metric": "relative_positions", "method": distance.method, "parameters": parameters, "length": length}
    words = " ".join([distance.method, *[f"--{name}={json.dumps(value)}" for name, value in parameters.items()]])
    facts = f"{length} tokens, {len(held)} relative positions, the largest {format_position(held[-1])}"
    text = f"{format_matrix(distance, length)}\n\n{words}\n{facts}"
    return text, [{**row, "largest": float(held[-1]), "distinct": len(held)}]


def compute_cells(distance: Distance, q_pos: IntArray, k_pos: IntArray) -> FloatArray:
    """Compute the relative positions of queries and keys, float64 (Tq, Tk); nan above the diagonal or where hidden."""
    # torch takes a second to import, which skip methods and errors do not need.
    import torch

    rel_pos = distance.rel_pos(torch.from_numpy(q_pos), torch.from_numpy(k_pos)).numpy()
    return np.where(k_pos[None, :] <= q_pos[:, None], rel_pos, np.nan)


def list_values(distance: Distance, length: int) -> FloatArray:
    """List the relative positions that the matrix contains, sorted, each once."""
    positions = np.arange(length)
    # The first column and the last row contain them all. A method that depends on the distance alone has every
    # distance in the last row. Self-Extend and Dual Chunk Attention count from the beginning, as the first column does.
    held = compute_cells(distance, positions, positions[:1]), compute_cells(distance, positions[-1:], positions)
    distinct = np.unique(np.append(*held))
    return distinct[~np.isnan(distinct)]


def format_position(value: float) -> str:
    """Write a position with the fewest decimals it needs, `.` for a hidden one.

    Example:
        >>> format_position(6.0), format_position(5.5), format_position(1 / 3), format_position(np.nan)
        ('6', '5.5', '0.333', '.')
    """
    return "." if np.isnan(value) else f"{value:.3f}".rstrip("0").rstrip(".")


def format_matrix(distance: Distance, length: int) -> str:
    """Format the matrix, `.` above the diagonal; that of a long text is only plotted."""
    if length > WHOLE:
        return f"a matrix of more than {WHOLE} tokens is not printed; --plot plots it"
    positions = np.arange(length)
    texts = np.vectorize(format_position)(compute_cells(distance, positions, positions))
    return "\n".join(map(" ".join, np.char.rjust(texts, np.char.str_len(texts).max())))


def matrix_chart(distance: Distance, options: MatrixOptions) -> Any:
    """Plot the matrix (arXiv:2410.18745, Figures 5 and 8), and the same cells by f, a share of its largest value."""
    import pandas as pd

    f = natural_lengths(options.length).frequency(options.length, "natural")
    # At most 72 queries and keys are plotted.
    sampled = np.linspace(0, options.length - 1, min(options.length, 72)).round().astype(np.int64)
    rel_pos = compute_cells(distance, sampled, sampled)
    # Positions may be fractions: f is linear in between as in Eq. 2, 0 beyond the window, and nan at hidden cells.
    share = np.interp(rel_pos, np.arange(len(f) + 1), np.append(f, 0))
    never = f"{(share == 0).sum() / np.isfinite(share).sum():.1%}"
    index = pd.MultiIndex.from_product([sampled, sampled], names=["query", "key"])
    grid = pd.DataFrame({"position": rel_pos.ravel(), "share": share.ravel()}, index).reset_index()
    heat = partial(chart.plot_heat, grid, chart.Axis("key", "key position"), chart.Axis("query", "query position"))
    trained = f"f of it on natural lengths, share of the largest; never trained: {never} of the cells"
    parts = heat("position", title="relative position, tokens"), heat("share", percent=True, title=trained)
    title = f"{distance.method}: a text of {options.length:,} tokens; training on natural lengths"
    return chart.concat(*parts, columns=2, title=title)


def show_skip(config: Skip, options: SkipOptions) -> tuple[str, list[Row]]:
    """Compare the method's ids with ids without gaps, of the sample's and of the target window's length.

    Raises: ConfigError for a target window that is too long.
    """
    n, target_len = options.n_tokens, config.target_len
    if target_len > LONGEST:
        rule = f"must be <= {LONGEST}, as f is held in memory; lower it and n_tokens alike"
        raise ConfigError(f"--target_len={target_len}: {rule}")
    texts: dict[str, Iterable[IntArray]] = {config.method: sample_ids(config, options)}
    texts |= {f"0 .. {length - 1}": [np.arange(length)] for length in (n, target_len)}
    rows: list[Row] = []
    table: list[Row] = []
    for name, ids in texts.items():
        row, shares = measure(ids, target_len)
        rows.append({"metric": "skip_ids", "name": name, **row})
        at = [quarter * target_len // 4 for quarter in (1, 2, 3)]
        table.append({"ids": name, **row, **{f"f({i}) / f(0)": f"{100 * shares[i]:.3g}%" for i in at}})
    title = f"{config.method}: {options.samples:,} samples of {n:,} tokens, target window {target_len:,}"
    if config.needs_sentences:
        title += f", sentences of {options.sentence_tokens:g} tokens on average"
    return f"{title}\n\n{to_text(table, {'mean_distance': '.1f', 'mean_run_length': '.2f'})}", rows


def sample_sentences(n_tokens: int, mean: float, generator: np.random.Generator) -> IntArray:
    """Sample sentence lengths that fill a sample, geometric with the given mean but for the last."""
    ends = (generator.random(n_tokens) < 1 / mean).astype(np.int64)
    # Each token is id 0 or 1, and id 1 ends a sentence.
    return split_sentences(ends, np.array([False, True]))


def sample_ids(config: Skip, options: SkipOptions) -> Iterator[IntArray]:
    """Sample the ids of every sample."""
    generator = np.random.default_rng(options.seed)
    lengths = None
    for _ in range(options.samples):
        if config.needs_sentences:
            lengths = sample_sentences(options.n_tokens, options.sentence_tokens, generator)
        yield skip.skip_positions(config, options.n_tokens, sentence_lengths=lengths, generator=generator)


def measure(drawn: Iterable[IntArray], target_len: int) -> tuple[Row, FloatArray]:
    """Measure samples one by one: the means of their distances and of all runs, and f(i) / f(0), (target_len,)."""
    counts = PositionCounts(target_len)
    distances, runs, last = [], [], []
    for ids in drawn:
        counts.add_positions(ids, np.zeros_like(ids), mask="causal")
        distances.append(skip.mean_distance(ids))
        runs.append(skip.run_lengths(ids))
        last.append(int(ids[-1]))  # ids rise
    f = counts.frequency()
    means = {"mean_distance": float(np.mean(distances)), "mean_run_length": float(np.concatenate(runs).mean())}
    return {**means, "largest": max(last)}, f / f[0]


def settings(everything: bool) -> list[str]:
    """Describe the options, and every method's parameters."""
    lines = []
    for options, methods in ((MatrixOptions, DISTANCE_METHODS), (SkipOptions, skip.SKIP_METHODS)):
        lines += settings_lines(options, everything, heading=f"Options of {', '.join(methods)}")
    for method, config in METHODS.items() if everything else ():
        # A selection is a folder of a run's own, and no ids of a sample depend on it.
        lines += settings_lines(config, everything, excluded=("method", "selection"), heading=method)
    return lines


SPEC = command.EvaluationSpec(
    name="positions",
    description=__doc__,
    excluded=("--distance", "--frequency"),
    missing=f"METHOD: must be the first argument; one of: {', '.join(METHODS)}",
    settings=settings,
    stopped=NOTHING_WRITTEN,
)
main = partial(command.run_evaluation, SPEC, show_method)


if __name__ == "__main__":
    start(main)
