"""The effect of upsampling on lengths and sources: counts before and after, as a record and as tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lab.data.upsampling import Floats, Ints

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
MOST_ROWS = 20  # sources of a table, the largest ones


@dataclass
class Tally:
    """Documents and tokens of each class (source and length), and documents of each length; additive over shards.

    Shapes: `documents`, `tokens`, `repeated`, `left_out`, `left_out_tokens` int64 (2 * n_sources,), classes as in
        `classes_of`; `repeated` are tokens of copies beyond a document's first.
    """

    documents: Ints
    tokens: Ints
    repeated: Ints
    left_out: Ints
    left_out_tokens: Ints
    lengths: Counter[int] = field(default_factory=Counter)

    @classmethod
    def zero(cls, n_classes: int) -> Tally:
        """Return an empty tally."""
        return cls(*np.zeros((5, n_classes), dtype=np.int64))

    def add(self, lengths: Ints, classes: Ints, copies: Ints) -> None:
        """Count the copies of a shard's documents."""
        out = copies == 0
        self.documents += summed(classes, copies, len(self.documents))
        self.tokens += summed(classes, copies * lengths, len(self.documents))
        self.repeated += summed(classes, np.maximum(copies - 1, 0) * lengths, len(self.documents))
        self.left_out += summed(classes, out, len(self.documents))
        self.left_out_tokens += summed(classes, out * lengths, len(self.documents))
        values, places = np.unique(lengths, return_inverse=True)
        self.lengths.update(dict(zip(values.tolist(), summed(places, copies, len(values)).tolist())))


def summed(places: Ints, amounts: Any, n: int) -> Ints:
    """Sum whole amounts by index, exact below 2^53."""
    return np.bincount(places, weights=amounts, minlength=n).astype(np.int64)


def record_of(
    sources: list[str], before: Tally, after: Tally, weights: Floats, kept: list[str | None]
) -> dict[str, Any]:
    """Build the record of an upsampling, plain values for JSON; sources with the most tokens first.

    Shapes: `weights` (n_sources, 2), expected copies of a short and of a long document.
    """
    rows = [
        {
            "source": name,
            **counts_of(before, after, slice(2 * number, 2 * number + 2)),
            "copies_of_short": float(weights[number, 0]),
            "copies_of_long": float(weights[number, 1]),
            "kept_because": kept[number],
        }
        for number, name in enumerate(sources)
    ]
    return {
        "sources": sorted(rows, key=lambda row: -row["tokens"]["before"]),
        "all": counts_of(before, after, slice(None)),
        "quantiles": {
            "at": list(QUANTILES),
            "of_documents": {"before": quantiles(before.lengths, 0), "after": quantiles(after.lengths, 0)},
            "of_tokens": {"before": quantiles(before.lengths, 1), "after": quantiles(after.lengths, 1)},
        },
        "histogram": histogram(before.lengths, after.lengths),
    }


def counts_of(before: Tally, after: Tally, part: slice) -> dict[str, Any]:
    """Sum the counts of some classes; odd ones are of long documents."""
    pair = {"before": before, "after": after}
    tokens = {when: int(tally.tokens[part].sum()) for when, tally in pair.items()}
    long = {when: int(tally.tokens[part][1::2].sum()) for when, tally in pair.items()}
    return {
        "documents": {when: int(tally.documents[part].sum()) for when, tally in pair.items()},
        "tokens": tokens,
        "share_of_tokens": {when: tokens[when] / max(1, int(tally.tokens.sum())) for when, tally in pair.items()},
        "long": {when: long[when] / max(1, tokens[when]) for when in pair},
        "repeated_tokens": int(after.repeated[part].sum()),
        "left_out_documents": int(after.left_out[part].sum()),
        "left_out_tokens": int(after.left_out_tokens[part].sum()),
    }


def quantiles(lengths: Counter[int], power: int) -> list[int]:
    """Compute the quantiles of length over documents (power 0) or tokens (power 1).

    Example:
        >>> quantiles(Counter({1: 6, 10: 3, 100: 1}), 0), quantiles(Counter({1: 6, 10: 3, 100: 1}), 1)
        ([1, 1, 1, 10, 10, 100, 100], [10, 10, 100, 100, 100, 100, 100])
    """
    values = sorted(length for length, n in lengths.items() if n)
    if not values:
        return []
    reached = np.cumsum([lengths[value] * value**power for value in values])
    wanted = np.ceil(np.array(QUANTILES) * reached[-1] - 1e-6)
    return [values[place] for place in np.searchsorted(reached, wanted)]


def histogram(before: Counter[int], after: Counter[int]) -> list[dict[str, Any]]:
    """Count documents and tokens by lengths from a power of two to the next."""
    bins = range(min(before).bit_length() - 1, max(before).bit_length()) if before else range(0)
    rows = []
    for power in bins:
        row: dict[str, Any] = {"from": 2**power, "documents": {}, "tokens": {}}
        for when, lengths in (("before", before), ("after", after)):
            inside = [(length, n) for length, n in lengths.items() if length.bit_length() - 1 == power]
            row["documents"][when] = sum(n for _, n in inside)
            row["tokens"][when] = sum(n * length for length, n in inside)
        rows.append(row)
    return rows


def tables(record: dict[str, Any]) -> str:
    """Format a record as text."""
    return "\n\n".join([source_table(record), length_table(record), quantile_table(record)])


def source_table(record: dict[str, Any]) -> str:
    """Format the sources, one per row, and their sum: before -> after."""
    heads = ["source", "documents", "tokens", "share of tokens", f"over {record['longer_than']:,}", "copies of short"]
    rows = [[*heads, "of long", "repeated", "left out", ""]]
    shown = record["sources"][:MOST_ROWS]
    for row in [*shown, {"source": "all", "kept_because": None, **record["all"]}]:
        shares = [arrow(row[key], ".1%") for key in ("share_of_tokens", "long")]
        copies = [f"{row[key]:.3f}" if key in row else "" for key in ("copies_of_short", "copies_of_long")]
        repeated = row["repeated_tokens"] / max(1, row["tokens"]["after"])
        left_out = row["left_out_documents"] / max(1, row["documents"]["before"])
        counts = [arrow(row["documents"]), arrow(row["tokens"])]
        note = f"kept: {row['kept_because']}" if row["kept_because"] else ""
        rows.append([row["source"], *counts, *shares, *copies, f"{repeated:.1%}", f"{left_out:.1%}", note])
    lines = [columns(rows)]
    if len(record["sources"]) > len(shown):
        lines.append(f"({len(record['sources']) - len(shown):,} smaller sources are in upsampling.json)")
    lines.append(
        "repeated: share of the tokens afterwards in second and later copies; left out: share of the documents"
    )
    return "\n".join(lines)


def length_table(record: dict[str, Any]) -> str:
    """Format the documents and the share of tokens by length: before -> after."""
    rows, total = [["length (tokens)", "documents", "share of tokens"]], record["all"]["tokens"]
    for row in record["histogram"]:
        share = {when: row["tokens"][when] / max(1, total[when]) for when in total}
        rows.append([f"{row['from']:,} to {2 * row['from'] - 1:,}", arrow(row["documents"]), arrow(share, ".1%")])
    return columns(rows)


def quantile_table(record: dict[str, Any]) -> str:
    """Format the quantiles of length over documents and over tokens."""
    found = record["quantiles"]
    rows = [["longest length of ...", *(f"{at:.0%}" for at in found["at"])]]
    for of, what in (("of_documents", "documents"), ("of_tokens", "tokens")):
        rows += [[f"of the {what}, {when}", *(f"{v:,}" for v in values)] for when, values in found[of].items()]
    return columns(rows)


def columns(rows: list[list[str]]) -> str:
    """Align rows in columns, the first column left and the others right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows)]
    lines = (
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def arrow(pair: dict[str, Any], form: str = ",") -> str:
    """Format a pair as before -> after."""
    return f"{pair['before']:{form}} -> {pair['after']:{form}}"
