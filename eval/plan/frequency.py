"""Write the position frequency of a corpus: its shares up to and from some positions, and those of segments.

    python -m eval.plan.frequency -o FILE.jsonl --window=2048 --positions=512,1024 [--mode=natural] [--corpus=FOLDER]

arXiv:2410.18745, Figures 1 and 3. The corpus is a folder of token shards, a CSV file with `length,count` of documents,
or, left out, the shape that the paper reports of SlimPajama. A line for each position i holds f(i), for --tokens
tokens; `share_to`, of all positions up to i; `share_from`, from i on; `segments_to`, of segments of at most i tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval.engine.rows import write_rows
from eval.plan.documents import SLIMPAJAMA, read_documents
from lab.command import Syntax, Words, read_options, run, settings_lines, start
from lab.data.config import Mode
from lab.errors import ConfigError
from lab.schema import Length, PathText, PositiveFloat, Section


@dataclass(frozen=True, kw_only=True)
class FrequencyOptions(Section):
    """Options of this command."""

    window: Length
    """Training window in tokens."""
    positions: tuple[Length, ...]
    """Positions below the window, with commas between them."""
    mode: Mode = "natural"
    """Documents as they are (natural), of uniform lengths, or concatenated to full windows."""
    corpus: PathText = SLIMPAJAMA
    """Folder of token shards, CSV file, or slimpajama."""
    tokens: PositiveFloat = 1.0
    """Tokens trained on, which f counts."""

    def rules(self) -> list[str]:
        """Refuse positions that no pair of tokens has."""
        wide = [i for i in self.positions if i >= self.window]
        return [f"positions={i}: must be < {self.window}, the window; lower it" for i in wide]


def records(options: FrequencyOptions) -> Iterator[dict[str, Any]]:
    """Make a result for each position.

    Example:
        >>> full = FrequencyOptions(window=4, positions=(2,), mode="concatenated", tokens=4.0)
        >>> [(row["f"], row["share_to"], row["share_from"], row["segments_to"]) for row in records(full)]
        [(2.0, 0.9, 0.3, 0.0)]
    """
    per_token = read_documents(options.corpus).frequency(options.window, options.mode)
    total, segments = per_token.sum(), np.diff(np.append(per_token, [0, 0]), 2)  # f is their double sum from behind
    for i in options.positions:
        yield {
            "window": options.window,
            "mode": options.mode,
            "corpus": options.corpus,
            "metric": "position_frequency",
            "position": i,
            "f": float(per_token[i] * options.tokens),
            "share_to": float(per_token[: i + 1].sum() / total),
            "share_from": float(per_token[i:].sum() / total),
            "segments_to": float(segments[:i].sum() / segments.sum()),
        }


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""

    def work(words: Words) -> str:
        if not words.options.o:
            raise ConfigError("-o: must be given, the file of results; for instance -o f.jsonl")
        place = Path(words.options.o)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_rows(place, records(read_options(FrequencyOptions, words.settings)), f"-o {place}")
        return f"written to {place}"

    syntax = Syntax(places=0, values=("-o",))
    return run(__doc__, arguments, work, syntax=syntax, settings=lambda: settings_lines(FrequencyOptions))


if __name__ == "__main__":
    start(main)
