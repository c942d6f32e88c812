"""Position methods on one model and the same tests (arXiv:2410.18745, Table 1), and their differences to rope."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.engine.methods import METHODS, Setting, named
from eval.engine.rows import Results, Row
from eval.engine.statistics import MCNEMAR, holm, pair, share
from eval.engine.subject import SUBJECT, checked
from eval.engine.table import limits, to_text
from eval.probing.tests import NeedleMeasure, finished_tests
from lab.bars import Bar
from lab.draw import draw
from lab.errors import ConfigError
from lab.probe.records import tests_of
from lab.schema import look_up

BASE, LEVEL = "rope", 0.05
ALIKE = ("protocol", "needles", "digits", "required", "answer_budget", "haystack", "n", "seed", "confidence")
FORMS = {"n": ",", "passed": ",", "share": ".3f", "p": ".2g", "found": ".3f", "s/test": ".3f"}


class ByMethod(NeedleMeasure):
    """Position methods on the same tests, and their differences to rope."""

    named_by = (*SUBJECT, *ALIKE, "length", "compared_as", "train_len")

    def prepare(self) -> None:
        """Build the tests and the methods.

        Raises: LabError.
        """
        words = list(self.request.distances) or list(METHODS)
        faults = [f"--distance={word}: is given twice; keep one" for word in sorted({*words}) if words.count(word) > 1]
        for word in words:
            try:
                look_up(dict.fromkeys(METHODS), word.partition(":")[0], "distance")
            except ConfigError as error:
                faults += [f"--{fault}" for fault in error.faults]
        if faults:
            raise ConfigError(*faults)
        train_len = self.options.train_len or self.subject.model.train_len
        if train_len is None:
            raise ConfigError("--train_len: must be set, the model does not state its training length")
        self.words, self.train_len = sorted(words, key=lambda word: word != BASE), train_len
        self.own = self.subject.model.decoder.frequencies
        super().prepare()
        self.settings = {
            length: [checked(named(word, train_len, length), length, self.own) for word in self.words]
            for length in self.lengths
        }

    def choose_lengths(self) -> list[int]:
        """Return the lengths asked for, or the training length.

        Raises: ConfigError where that has no room for a test.
        """
        shortest, train_len = self.probe.shortest(), self.train_len
        if self.options.lengths is None and train_len < shortest:
            rule = f"must be set, a test takes {shortest} tokens and the training length is {train_len}"
            raise ConfigError(f"--lengths: {rule}; name lengths with room")
        return sorted(self.options.lengths or [train_len])

    @property
    def path(self) -> Path:
        """The file that the rows are appended to."""
        return self.folder / "methods.jsonl"

    def rows(self) -> list[Row]:
        """Run every method at every length, and test the differences of a length once all are known."""
        self.results, rows = Results(self.path, self.named_by), []
        with Bar(total=len(self.words) * len(self.lengths) * self.probe.config.tests, desc="probe", unit="test") as bar:
            self.bar = bar
            for length, settings in self.settings.items():
                base: list[bool] | None = None
                for item in settings:
                    bar.name(f"{item.method} at {length:,} tokens")
                    row, passed = self.run_method(item, length, base)
                    base = passed if item.method == BASE else base
                    rows.append(self.keep(row))
        return rows

    def run_method(self, item: Setting, length: int, base: Sequence[bool] | None) -> tuple[Row, list[bool]]:
        """Run one method's tests: its row, and which tests it passes; `base` are those that rope passes."""
        decoder, config = self.subject.model.decoder, self.probe.config
        decoder.frequencies, decoder.distance = item.place(self.own)
        finished = finished_tests(self.subject, self.probe, self.folder)
        result = self.run_length(length, finished)
        passed = [row["found"] >= config.required for row in result.cases]
        row = {
            **self.subject.row,
            "metric": "needles_by_method",
            "compared_as": item.method,
            "train_len": item.train_len,
            "assumed_len": item.assumed_len,
            "parameters": item.parameters,
            **tests_of(self.probe),
            "n": config.tests,
            "length": length,
            "confidence": config.confidence,
            "passed": sum(passed),
            **share(sum(passed), len(passed), config.confidence),
            "numbers_found": sum(row["found"] for row in result.cases) / (len(passed) * self.probe.needles),
            "versus_rope": pair(base, passed).row if base is not None and item.method != BASE else None,
            "seconds": result.seconds,
        }
        return row, passed

    def keep(self, row: Row) -> Row:
        """Add a row unless an equal one exists; seconds and comparison that this call lacks are taken from that one."""
        before = self.results.find(row)
        if before is None:
            return self.results.add(row)
        merged = {**row, **{name: row[name] or before[name] for name in ("versus_rope", "seconds")}}
        new = [name for name, value in merged.items() if before.get(name) != value]
        return self.results.add(merged) if {*new} - {"commit", "hardware"} else before

    def title(self) -> str:
        """Name the model and the tests."""
        tests = f"{self.probe.config.tests} tests at each length"
        return f"{self.subject.model.name}, trained at {self.train_len:,} tokens; {tests}"

    def text(self, rows: Sequence[Row]) -> str:
        """Write a table for each length."""
        tables = [methods_table([row for row in rows if row["length"] == length]) for length in self.lengths]
        return "\n".join([self.title(), *tables, ""])

    def chart(self, rows: Sequence[Row]) -> Any:
        """Draw each method's share of tests passed, with limits, at every length."""
        style: dict[str, Any] = {"x_title": "length (tokens)", "y_title": "share of tests passed", "percent": True}
        return draw(rows, "length", "score", "compared_as", None, "low", "high", "bar", y_limits=(0, 1),
                    names=self.words, title=self.title(), **style)  # fmt: skip

    def picture(self, rows: Sequence[Row]) -> Path:
        """Name the picture by all but what is compared in it."""
        digest = self.results.digest({**rows[0], "length": self.lengths, "compared_as": ",".join(self.words)})
        return self.folder / f"methods-{digest}.png"


def methods_table(rows: Sequence[Row]) -> str:
    """Write the methods of one length, with limits and differences to rope."""
    adjusted = holm({row["compared_as"]: row["versus_rope"]["p"] for row in rows if row["versus_rope"]})

    def difference(row: Row) -> str | None:
        if not row["versus_rope"]:
            return None
        return f"{row['versus_rope']['difference']:+.3f}{'*' if adjusted[row['compared_as']] <= LEVEL else ' '}"

    shown = [
        {
            "method": row["compared_as"],
            "n": row["n"],
            "passed": row["passed"],
            "share": row["score"],
            f"{row['confidence']:.6g} limits": limits(row, ".3f"),
            "to rope": difference(row),
            "p": adjusted.get(row["compared_as"]),
            "found": row["numbers_found"],
            "s/test": row["seconds"] / row["n"] if row["seconds"] else None,
            "settings": row["method"],
        }
        for row in rows
    ]
    lines = ["", f"{rows[0]['length']:,} tokens", to_text(shown, FORMS)]
    if adjusted:
        lines.append(f"* significant at {LEVEL:g}: {MCNEMAR}, p adjusted for {len(adjusted)} methods (Holm)")
    return "\n".join(lines)
