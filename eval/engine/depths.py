"""Which of a test's numbers were found, by their depth in the text (arXiv:2410.18745, Figure 4 and Table 4).

Depth is the share of the haystack before a needle, 0 at its beginning. Each n-th of the haystack's first 99% has one
of a test's n needles. Cells are equal parts of the same 99%, a whole number of them to a needle. So the numbers of a
cell come from different tests, and the share found has the exact limits of Clopper and Pearson.

Table 4 asks in which third of the document failures lie. A third may hold several numbers of a test, which do not fail
independently. So every test that misses any number counts once, by one of its missed numbers, drawn with equal chances
from the seed of the test, and the share of each third has exact limits too. The thirds are of the first 99%, each seen
equally often.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from eval.engine.answers import share
from eval.engine.needles import X_TITLE, NeedleMeasure
from eval.engine.text import limits, pivot, to_text
from lab.core.chart import Axis, plot_heat
from lab.core.errors import ConfigError
from lab.core.types import CONFIDENCE, Row
from lab.probe.config import ProbeConfig
from lab.probe.needles import DEPTH_RANGE

THIRDS = ("0-33%", "33-66%", "66-99%")


def find_cell(depth: float, needle: int, needles: int, depths: int) -> int:
    """Find the cell of a depth among `depths` equal ones."""
    assert depths % needles == 0, "the command rejects other numbers of depths"
    per_needle = depths // needles
    # A depth is recorded rounded, so that a needle at an edge could fall into the cells of its neighbour.
    return min(max(int(depth / DEPTH_RANGE * depths), needle * per_needle), (needle + 1) * per_needle - 1)


def depth_rows(tests: Sequence[Row], depths: int) -> list[Row]:
    """Count the numbers of one length's tests by depth: a row for each cell."""
    # Every needle is counted at its own depth, also in tests that fail as a whole.
    counts = np.zeros((depths, 2), dtype=int)  # missed and found
    for row in tests:
        for needle, (depth, hit) in enumerate(zip(row["depths"], row["found_each"], strict=True)):
            counts[find_cell(depth, needle, len(row["depths"]), depths), int(hit)] += 1
    rows = []
    for cell, (missed, hit) in enumerate(counts.tolist()):
        n = missed + hit
        low, high = (round(DEPTH_RANGE * edge / depths, 6) for edge in (cell, cell + 1))
        rows.append({"from_depth": low, "to_depth": high, "n": n, "found": hit, **share(hit, n)})
    return rows


def third_rows(tests: Sequence[Row], seed: int) -> list[Row]:
    """Count the failures of one length's tests by third; `n` is the tests that miss a number."""
    failures = []
    for row in tests:
        lost = [depth for depth, hit in zip(row["depths"], row["found_each"], strict=True) if not hit]
        if lost:
            # A stream per test, the 4 apart from its own draws: the choice does not depend on which other tests fail,
            # or on how many were run.
            generator = np.random.default_rng([seed, row["length"], row["test"], 4])
            failures.append(find_cell(lost[generator.integers(len(lost))], 0, 1, len(THIRDS)))
    n = len(failures)
    rows = []
    for number, third in enumerate(THIRDS):
        k = failures.count(number)
        rows.append({"third": third, "n": n, "failures": k, **share(k, n)})
    return rows


class ByDepth(NeedleMeasure):
    """Retrieval accuracy by depth and length, and failures by third of the text."""

    def choose_lengths(self, config: ProbeConfig, shortest: int) -> Sequence[int]:
        """Return the requested lengths, or the run's own, up to its training window if it sets no maximum.

        Raises: ConfigError if the number of depths is no multiple of the needles.
        """
        needles = config.needles
        self.depths = self.options.depths or 3 * needles
        if self.depths % needles:
            rule = f"must be a multiple of the {needles} needles, each of which has depths of its own; correct it"
            raise ConfigError(f"--depths={self.depths}: {rule}")
        # Rounded up: the first multiple of the step that is at least the shortest test.
        first = -(-shortest // config.step) * config.step
        longest = config.max_length or self.subject.model.train_len
        return self.options.lengths or range(first, longest + 1, config.step) or [first]

    @property
    def origin(self) -> Row:
        return {**super().origin, "tests": self.config.tests, "depths": self.depths, "confidence": CONFIDENCE}

    def rows(self) -> Iterator[Row]:
        """Run the tests, and write a row for each cell and each third."""
        with self.counting() as bar:
            finished = self.open_needles()
            for length in self.lengths:
                bar.name(f"{length:,} tokens")
                result = self.probe.run_at(self.subject, length, worker=finished)
                shared = {**self.origin, "length": length, "seconds": result.seconds, "metric": "found_by_depth"}
                rows = [{**shared, **row} for row in depth_rows(result.cases, self.depths)]
                shared |= {"metric": "failures_by_third", "accuracy": result.accuracy}
                rows += [{**shared, **row} for row in third_rows(result.cases, self.config.seed)]
                yield from finished.add(rows)

    def text(self, rows: Sequence[Row]) -> str:
        """Write the heat map in percent, and the third of the text in which failed tests miss a number."""
        cells, missed = split(rows)
        # A cell without tests would be an empty row of the table.
        grid = 100 * pivot(cells, "depth", "length").astype(float).dropna(how="all")
        lines = ["retrieval accuracy (%)", to_text(grid.rename(columns="{:,}".format), ".0f")]
        if missed:
            heading = f"share of failures by third of the text, {CONFIDENCE:g} limits"
            lines += ["", heading, to_text(pivot(missed, "length", "third", "share"))]
        return "\n".join(lines)

    def chart(self, rows: Sequence[Row]) -> Any:
        """Plot the heat map."""
        return plot_heat(
            split(rows)[0],
            Axis("length", X_TITLE),
            Axis("depth", "depth of the number"),
            "retrieval accuracy",
            height=22 * self.depths,
            title=self.title(),
            percent=True,
            rules=self.window_between(self.lengths),
        )


def split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Separate the cells, with their depths as text, from the thirds with failures, with their shares as text."""
    cells = []
    missed = []
    for row in rows:
        if row["metric"] == "found_by_depth":
            depth = f"{row['from_depth']:.0%}-{row['to_depth']:.0%}"
            cells.append({**row, "depth": depth, "retrieval accuracy": row["score"]})
        elif row["n"]:
            missed.append({**row, "share": f"{row['score']:.2f} ({limits(row, '.2f')})"})
    return cells, missed
