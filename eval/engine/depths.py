"""Which of a test's numbers were found, by their depth in the text (arXiv:2410.18745, Figure 4 and Table 4).

Depth is the share of the haystack before a needle, 0 at its beginning. The n needles of a test lie one in each n-th
of the haystack's first 99%, and cells are equal parts of the same 99%, a whole number of them to a needle. So a test
has one number in a cell at most, the numbers of a cell come from different tests, and the share found has the exact
limits of Clopper and Pearson.

Table 4 asks in which third of the document failures lie. A third may hold several numbers of a test, which do not fail
independently. So every test that misses any number counts once, by one of its missed numbers, drawn with equal chances
from the seed of the test. Then the thirds' counts are of independent failures, and the share of each third has exact
limits too. The thirds are of the first 99%: 0-33%, 33-66% and 66-99%, each seen equally often.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.engine.answers import own_lengths
from eval.engine.needles import FORMS, STYLE, NeedleMeasure
from eval.engine.rows import Row, limits, pivot, shortened, to_text, write_rows
from eval.engine.statistics import share
from lab.draw import below, draw
from lab.errors import ConfigError
from lab.probe.needles import DEPTH_RANGE

THIRDS = ("0-33%", "33-66%", "66-99%")
DRAW = 4  # keeps the draw of a failure apart from the test's own draws
CELLS_PER_NEEDLE = 3
Finds = Callable[[str, list[str]], int]


def was_found(row: Mapping[str, Any], found: Finds) -> list[bool]:
    """Return for each number of a test whether its answer holds it."""
    return [found(row["answer"], [number]) > 0 for number in row["numbers"]]


def cell_of(depth: float, needle: int, needles: int, depths: int) -> int:
    """Find the cell of a depth among `depths` equal ones; needle k stays in its own n-th, which roundings may leave.

    Example:
        >>> cell_of(0.0, 0, 4, 12), cell_of(0.25, 1, 4, 12), cell_of(0.247499, 1, 4, 12), cell_of(0.98, 3, 4, 12)
        (0, 3, 3, 11)
    """
    assert depths % needles == 0, "the command refuses other numbers of depths"
    own = depths // needles
    return min(max(int(depth / DEPTH_RANGE * depths), needle * own), (needle + 1) * own - 1)


def third_of(depth: float) -> int:
    """Find the third of a depth.

    Example:
        >>> third_of(0.32), third_of(0.34), third_of(0.65), third_of(0.67), third_of(0.99)
        (0, 1, 1, 2, 2)
    """
    return min(2, int(3 * depth / DEPTH_RANGE))


def depth_rows(tests: Sequence[Row], found: Finds, depths: int, confidence: float) -> list[Row]:
    """Count the numbers of one length's tests by depth: a row for each cell."""
    totals, hits = np.zeros((2, depths), dtype=int)
    for row in tests:
        for needle, (depth, hit) in enumerate(zip(row["depths"], was_found(row, found), strict=True)):
            cell = cell_of(depth, needle, len(row["depths"]), depths)
            totals[cell] += 1
            hits[cell] += hit
    edges = [round(DEPTH_RANGE * k / depths, 6) for k in range(depths + 1)]
    each = zip(edges, edges[1:], totals.tolist(), hits.tolist(), strict=False)
    return [
        {"from_depth": start, "to_depth": end, "n": n, "found": hit, **share(hit, n, confidence)}
        for start, end, n, hit in each
    ]


def third_rows(tests: Sequence[Row], found: Finds, seed: int, confidence: float) -> list[Row]:
    """Count the failures of one length's tests by third; `n` is the tests that miss a number."""
    numbers, missed, failures = np.zeros((3, 3), dtype=int)
    for row in tests:
        thirds = [third_of(depth) for depth in row["depths"]]
        lost = [third for third, hit in zip(thirds, was_found(row, found), strict=True) if not hit]
        np.add.at(numbers, thirds, 1)
        np.add.at(missed, lost, 1)
        if lost:
            generator = np.random.default_rng([seed, row["length"], row["test"], DRAW])
            failures[lost[generator.integers(len(lost))]] += 1
    failing = int(failures.sum())
    each = zip(THIRDS, numbers.tolist(), missed.tolist(), failures.tolist(), strict=True)
    return [
        {"third": third, "numbers": n, "missed": m, "n": failing, "failures": k, **share(k, failing, confidence)}
        for third, n, m, k in each
    ]


def peak(thirds: Sequence[Row]) -> str | None:
    """Name the third with more failures than any other; None where two have as many.

    Example:
        >>> peak([{"third": name, "failures": count} for name, count in zip(THIRDS, (2, 5, 1))])
        '33-66%'
    """
    least, most = sorted(thirds, key=lambda row: row["failures"])[-2:]
    return most["third"] if most["failures"] > least["failures"] else None


class ByDepth(NeedleMeasure):
    """The numbers found by depth and length, and failures by third of the text."""

    def choose_lengths(self) -> list[int]:
        """Return the lengths asked for, or the run's own.

        Raises: ConfigError for a number of depths that is not a whole number of them to a needle.
        """
        needles = self.probe.config.needles
        self.depths = self.options.depths or CELLS_PER_NEEDLE * needles
        if self.depths % needles:
            near = max(1, round(self.depths / needles)) * needles
            rule = f"must be a multiple of the {needles} needles, each of which has depths of its own"
            raise ConfigError(f"--depths={self.depths}: {rule}; use {near}")
        return sorted(self.options.lengths or own_lengths(self.subject, self.probe))

    @property
    def about(self) -> Row:
        """What all rows state."""
        shared = {"tests": self.config.tests, "depths": self.depths, "confidence": self.config.confidence}
        return {**super().about, **shared}

    @property
    def path(self) -> Path:
        """The file of the rows, named by the checkpoint and the settings."""
        kept = {name: value for name, value in self.about.items() if name not in ("commit", "hardware")}
        digest = shortened(json.dumps({**kept, "lengths": self.lengths}, sort_keys=True))
        return self.folder / f"heatmap-{self.subject.model.consumed_tokens or 0:015d}-{digest}.jsonl"

    def rows(self) -> list[Row]:
        """Run the tests, and write a row for each cell and each third."""
        found, rows, confidence = self.probe.protocol.found, [], self.config.confidence
        finished = self.finished()
        with self.counting() as bar:
            for length in self.lengths:
                bar.name(f"{length:,} tokens")
                result = self.run_length(length, finished)
                shared = {**self.about, "length": length, "seconds": result.seconds}
                for row in depth_rows(result.cases, found, self.depths, confidence):
                    rows.append({**shared, "metric": "found_by_depth", **row})
                thirds = third_rows(result.cases, found, self.probe.config.seed, confidence)
                summary = {"metric": "failures_by_third", "accuracy": result.accuracy, "peak": peak(thirds)}
                rows += [{**shared, **summary, **row} for row in thirds]
        write_rows(self.path, rows)
        return rows

    def text(self, rows: Sequence[Row]) -> str:
        """Write the heat map in percent, and of the tests that miss a number, how many miss it where."""
        cells, thirds = split(rows)
        grid = 100 * pivot(cells, "depth", "length").astype(float).dropna(how="all")
        shown: dict[int, Row] = {}
        for row in thirds:
            about = {"length": row["length"], "tests": row["tests"], "miss any": row["n"]}
            known = None if row["score"] is None else f"{row['score']:.2f} ({limits(row, '.2f')})"
            shown.setdefault(row["length"], about)[row["third"]] = known
        for row in thirds:
            shown[row["length"]]["peak"] = row["peak"]
        heading = f"share of failures by third of the text, {self.config.confidence:.6g} limits"
        lines = [self.title(), "", "numbers found (%)", to_text(grid.rename(columns="{:,}".format), ".0f"), "", heading]
        lines.append(to_text([*shown.values()], FORMS))
        return "\n".join(lines)

    def chart(self, rows: Sequence[Row]) -> Any:
        """Draw the heat map, and below it each third's share of the failures with its limits."""
        cells, thirds = split(rows)
        grid = draw(
            cells,
            "length",
            "depth",
            "score",
            kind="heat",
            height=22 * self.depths,
            title=self.title(),
            y_title="depth of the number",
            rules=self.window_between(self.lengths),
            **STYLE,
        )
        missed = [row for row in thirds if row["score"] is not None]
        if not missed:
            return grid
        style = {"kind": "bar", "names": THIRDS, "height": 110, "title": "", "y_title": "share of failures"}
        return below(grid, self.length_shares(missed, "third", **style))


def split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Part the rows of cells, with their depths as text, from those of thirds."""
    cells = [row for row in rows if row["metric"] == "found_by_depth"]
    named = [{**row, "depth": f"{row['from_depth']:.0%}-{row['to_depth']:.0%}"} for row in cells]
    return named, [row for row in rows if row["metric"] == "failures_by_third"]
