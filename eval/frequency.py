"""Compare the position frequency of windows and modes: f at positions, and the shares of f and of segments around them.

    probe-lab frequency --positions=512,1024 [--corpus=SHARDS] [--window=2048,4096] [--mode=MODE] [--tokens=1e12]

    probe-lab frequency --window=2048 --mode=natural,uniform,concatenated --positions=1024,1536
    probe-lab frequency --corpus=shards/mine --window=2048,4096 --positions=1024 --tokens=3e11

The corpus is a folder of token shards, or the shape of SlimPajama. These are Figures 1 and 3 of arXiv:2410.18745.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from eval.engine.command import OF_RUNS, EvaluationSpec, Request, run_evaluation
from eval.engine.lengths import SLIMPAJAMA, read_lengths
from eval.engine.text import Result, columns_text
from lab.core import command, schema
from lab.core.types import FloatArray, Row
from lab.data.config import Mode

SHARES = ("f", "share_to", "share_from", "segments_to")
FORMS = {"window": ",", "position": ",", **dict.fromkeys(SHARES, ".4g")}


class FrequencyOptions(schema.Section):
    """Options of the command."""

    positions: tuple[schema.Length, ...]
    """Positions in tokens, with commas between them."""
    corpus: schema.PathText = SLIMPAJAMA
    """Folder of token shards, or slimpajama, the shape that the paper reports."""
    window: tuple[Annotated[int, Ge(8), Le(2**24)], ...] = (2048, 4096)
    """Training windows in tokens, with commas between them."""
    mode: tuple[Mode, ...] = ("natural",)
    """How documents become segments (data.mode), with commas between several."""
    tokens: schema.PositiveFloat = 1e12
    """Tokens to train on."""

    def rules(self) -> list[str]:
        """Reject positions that no pair of tokens has."""
        least = min(self.window)
        return [f"positions={i}: must be < {least}, the window; lower it" for i in self.positions if i >= least]


def report_frequency(request: Request) -> Result:
    """Make a result for each window, mode and position."""
    options: FrequencyOptions = request.options
    lengths = read_lengths(options.corpus)
    rows = []
    for window, mode in product(options.window, options.mode):
        about = {"window": window, "mode": mode, "corpus": options.corpus, "metric": "position_frequency"}
        for row in compute_shares(lengths.frequency(window, mode), options):
            rows.append({**about, **row})
    columns = [(name, name, FORMS.get(name, "")) for name in ("position", "window", "mode", *SHARES)]
    table = columns_text(rows, columns)
    return request.save("frequency", f"corpus: {lengths.name}; {options.tokens:.3g} tokens\n\n{table}", rows)


def compute_shares(per_token: FloatArray, options: FrequencyOptions) -> Iterator[Row]:
    """Find f, `share_to` (of f up to a position), `share_from` (from it on) and `segments_to` (of segments as long).

    Example:
        >>> full = FrequencyOptions(positions=(2,), window=(8,), tokens=8.0)
        >>> [[round(row[name], 4) for name in SHARES] for row in compute_shares(np.arange(8, 0, -1) / 8, full)]
        [[6.0, 0.5833, 0.5833, 0.0]]
    """
    total = per_token.sum()
    # A segment of n tokens has n - i pairs at distance i: f is the double sum of the segments from behind.
    segments = np.diff(np.append(per_token, [0, 0]), 2)
    for i in options.positions:
        yield {
            "position": i,
            "f": float(per_token[i] * options.tokens),
            "share_to": float(per_token[: i + 1].sum() / total),
            "share_from": float(per_token[i:].sum() / total),
            "segments_to": float(segments[:i].sum() / segments.sum()),
        }


SPEC = EvaluationSpec(
    name="frequency", description=__doc__, options=FrequencyOptions, excluded=OF_RUNS, each=False, missing=""
)
main = partial(run_evaluation, SPEC, report_frequency)


if __name__ == "__main__":
    command.start(main)
