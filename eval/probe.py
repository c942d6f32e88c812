"""Probe a trained model's effective context length with four needles: by length, by depth, or by method.

    probe-lab probe MODEL [--option=value ...] [--by=depth] [--distance=METHOD,...] [--plot] [-o FOLDER]

Options default to those of the run's own `probe` section. A model that is no run's, nor exported from one, has the
section's defaults, steps of an eighth of its window, and needs a haystack:

    probe-lab probe runs/cpu_demo --tests=500 --sequential --error=0.01
    probe-lab probe models/Llama-3.1-8B --haystack=PaulGrahamEssays.json --protocol=released_llama31 --step=8192

--sequential stops a length as soon as the verdict that all tests would give is known up to --error. --protocol=released
and released_llama31 run the tests of the released script of arXiv:2410.18745, prompt for prompt.

--by=depth counts each number at its own depth and length (Figure 4 of the paper). It says in which third of the text
failures lie (Table 4; eval/engine/depths.py has the definitions):

    probe-lab probe runs/tiny_2k --by=depth --lengths=512,1024,1536,2048 --depths=20 --tests=500 --plot

Several methods in --distance are compared on the same tests, at the training length unless --lengths names others
(Table 1). Their settings are those of lab/positions/resolution.py, or parameters after a colon. McNemar's exact test
judges the difference to rope, corrected for the number of methods (Holm); an asterisk marks significance at 0.05:

    probe-lab probe runs/tiny_2k --distance=rope,ntk,yarn,rerope,self_extend,dca,string --plot
    probe-lab probe runs/tiny_2k --distance=rope,string,string:released_scaling=true,string:shift=1024,window=64

Every finished test is kept in tests-TOKENS-KEY.jsonl, in FOLDER or eval/ of the run (results/probe-NAME for another
model). After Ctrl-C (exit status 75) or a crash the same command continues, and one for more tests or lengths reuses
them. Results are next to it: probe-TOKENS-HASH/ (FOLDER itself with -o) with probes.jsonl and cases/ as training writes
them, heatmap-TOKENS-HASH.jsonl by depth, methods.jsonl.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eval.engine import answers, command, depths, methods, needles, run, statistics, subject
from eval.engine.rows import Column, Results, columns_text, limits, short_hash
from lab.core import chart
from lab.core.command import start
from lab.core.errors import ConfigError
from lab.core.types import CONFIDENCE, Row
from lab.probe.config import ProbeConfig
from lab.probe.limits import LengthResult
from lab.probe.reach import to_curve
from lab.runs.folder import RunFolder

OTHERS = {  # options that --by=... reads
    "length": ("step", "max_length", "threshold", "sequential", "error"),
    "depth": ("lengths", "depths"),
    "method": ("lengths", "train_len"),
}
ALIKE = ("protocol", "needles", "digits", "required", "answer_budget", "haystack", "n", "seed", "confidence")


class ByLength(needles.NeedleMeasure):
    """The share of tests passed by length, and effective length."""

    @classmethod
    def select_measure(cls, request: command.Request) -> type[run.Measure]:
        """Choose how results are presented, and reject options that this does not read."""
        options: needles.ProbeOptions = request.options
        by = options.by
        if by is None:
            by = "method" if len(request.distances) > 1 else "length"
        errors = []
        for name in sorted({*itertools.chain(*OTHERS.values())} - {*OTHERS[by]}):
            value = getattr(options, name)
            if value is not None:
                errors.append(f"--{name}={json.dumps(value)}: would be ignored with --by={by}; leave it out")
        if by == "method":
            for key, value in request.overrides.items():
                errors.append(f"--{key}={value}: several methods are set by this command itself; leave it out")
        elif len(request.distances) > 1:
            errors.append(f"--distance={','.join(request.distances)}: --by={by} takes one method; leave --by out")
        if errors:
            raise ConfigError(*errors)
        return {"length": ByLength, "depth": depths.ByDepth, "method": ByMethod}[by]

    @property
    def path(self) -> Path:
        """The folder of the records, named by the checkpoint and the settings."""
        model = self.subject.model
        # The folder has one probe: other settings, methods or weights are written to a folder of their own.
        settings = {**asdict(self.config), "method": model.method, "weights": self.subject.weights}
        digest = short_hash(json.dumps(settings, sort_keys=True))
        return self.request.folder or self.folder / f"probe-{model.consumed_tokens or 0:015d}-{digest}"

    def picture(self, rows: Sequence[Row]) -> Path:
        return self.path / "probe.png"

    def rows(self) -> list[Row]:
        """Probe length after length, and write the records that training's probe writes."""
        self.curve: list[LengthResult] = []
        with self.counting() as bar:
            for result in self.probe.run(self.subject, worker=self.finished_needles()):
                self.curve.append(result)
                # A length that stopped early leaves tests that are not run. The bar counts all tests that are done.
                bar.total -= self.config.tests - result.tests
                bar.update(sum([point.tests for point in self.curve]) - bar.n)
                bar.name(f"{result.length} tokens: {result.accuracy:.2f}")
        subject, counts = self.subject.row, self.subject.counts
        rows = [self.probe.record(result, subject, counts) for result in self.curve]
        return [*rows, self.probe.summarize(self.curve, subject, counts)]

    def write(self, rows: Sequence[Row]) -> None:
        """Write the records and cases as training does, so that what reads a run reads this folder."""
        folder = RunFolder(self.path)
        folder.write_records("probes.jsonl", rows)
        cases: list[Row] = []
        for result in self.curve:
            cases += result.cases
        folder.write_cases(self.subject.model.consumed_tokens or 0, cases)

    def text(self, rows: Sequence[Row]) -> str:
        """Write the curve, and the effective length."""
        config = self.config
        *curve, summary = rows
        columns: list[Column] = [
            ("length", "length", ","),
            ("passed", "passed", ","),
            ("tests", "tests", ","),
            ("accuracy", "accuracy", ".3f"),
            (f"{CONFIDENCE:g} limits", lambda row: limits(row, ".3f"), ""),
        ]
        lines = [columns_text(curve, columns), needles.format_effective_length(summary)]
        return "\n".join([*lines, f"protocol {config.protocol}: {self.probe.protocol.SUMMARY}"])

    def chart(self, rows: Sequence[Row]) -> Any:
        """Draw the curve with its limits and monotone fit, and the effective length."""
        *curve, summary = rows
        rules = self.window_between(row["length"] for row in curve)
        rules.append(chart.Rule("y", summary["threshold"], f"threshold {summary['threshold']:g}"))
        if summary["effective_length"]:
            length = summary["effective_length"]
            rules.append(chart.Rule("x", length, f"effective length {length:,}"))
        points = [{**row, "curve": "tests passed"} for row in curve]
        for row, score in zip(curve, to_curve(self.curve).fit(), strict=True):
            points.append({"length": row["length"], "score": score, "curve": "monotone fit"})
        return self.length_shares(points, "curve", title=self.title(), rules=rules)


class ByMethod(needles.NeedleMeasure):
    """Position methods on the same tests (arXiv:2410.18745, Table 1), and their differences to rope."""

    named_by = (*subject.SUBJECT, *ALIKE, "length", "compared_as", "train_len")

    def prepare(self) -> None:
        """Build the tests and the methods."""
        self.train_len = train_len = self.options.train_len or self.subject.model.train_len
        # Every method is built from the model's own frequencies, not from those of the method before it.
        self.own = self.subject.model.decoder.frequencies
        # False sorts before True: the base comes first, as the others are compared with its tests.
        self.words = sorted(self.request.distances or methods.METHODS, key=lambda word: word != statistics.BASE)
        self.settings: dict[int, list[methods.Setting]] = {}
        for length in sorted(self.options.lengths or [train_len]):
            self.settings[length] = [methods.setting(word, train_len, length) for word in self.words]
        super().prepare()

    def choose_lengths(self, config: ProbeConfig, shortest: int) -> Sequence[int]:
        return list(self.settings)

    @property
    def path(self) -> Path:
        return self.folder / "methods.jsonl"

    def rows(self) -> list[Row]:
        """Run every method at every length, and test its difference to rope, which comes first."""
        self.results = Results(self.path, self.named_by)
        rows = []
        with self.counting(len(self.words)) as bar:
            for length, settings in self.settings.items():
                base: list[bool] | None = None
                for item in settings:
                    bar.name(f"{item.word} at {length:,} tokens")
                    row, passed = self.run_method(item, length)
                    if item.word == statistics.BASE:
                        base = passed
                    elif base is not None:
                        row["versus_rope"] = statistics.pair(base, passed)
                    rows.append(self.store_row(row))
        return rows

    def run_method(self, item: methods.Setting, length: int) -> tuple[Row, list[bool]]:
        """Run one method's tests: its row, and which tests it passes."""
        config = self.config
        decoder = self.subject.model.decoder
        # The tests were built before, so that every method gets the same prompts.
        decoder.frequencies, decoder.distance = item.build(self.own)
        result = self.probe.run_at(self.subject, length, worker=self.finished_needles())
        passed = [row["found"] >= config.required for row in result.cases]
        row = {
            **self.origin,
            "metric": "needles_by_method",
            "compared_as": item.word,
            "train_len": self.train_len,
            "assumed_len": item.assumed_len,
            "parameters": item.parameters,
            "n": config.tests,
            "length": length,
            "confidence": CONFIDENCE,
            "passed": sum(passed),
            **answers.share(sum(passed), len(passed)),
            "numbers_found": sum([row["found"] for row in result.cases]) / (len(passed) * config.needles),
            "versus_rope": None,
            "seconds": result.seconds,
        }
        return row, passed

    def store_row(self, row: Row) -> Row:
        """Add a row unless it is known, with its comparison to rope if there is one."""
        before = self.results.find(row)
        if before is not None and (before["versus_rope"] or row["versus_rope"] is None):
            return before
        return self.results.add(row)

    def title(self) -> str:
        """Name the model and the tests; methods are in the table."""
        tests = f"{self.config.tests} tests at each length"
        return f"{self.subject.model.name}, trained at {self.train_len:,} tokens; {tests}"

    def text(self, rows: Sequence[Row]) -> str:
        lines = [self.title()]
        for length in self.lengths:
            lines.append(statistics.methods_table([row for row in rows if row["length"] == length]))
        return "\n".join([*lines, ""])

    def chart(self, rows: Sequence[Row]) -> Any:
        """Plot the share of tests passed by method and length, with its limits in each cell."""
        cells = []
        for row in rows:
            low, high = 100 * row["low"], 100 * row["high"]
            text = f"{100 * row['score']:.0f} ({low:.0f}-{high:.0f})"
            cells.append({**row, "tests passed": row["score"], "text": text})
        return chart.plot_rows(
            cells,
            "length",
            "compared_as",
            "tests passed",
            kind="heat",
            text="text",
            percent=True,
            title=self.title(),
            x_title=needles.X_TITLE,
            y_title="",
            width=520,
            height=30 * len(self.words),
            rules=self.window_between(self.lengths),
        )

    def picture(self, rows: Sequence[Row]) -> Path:
        """Name the picture by all but what is compared in it."""
        digest = self.results.digest({**rows[0], "length": self.lengths, "compared_as": ",".join(self.words)})
        return self.folder / f"methods-{digest}.png"


main = ByLength.main

if __name__ == "__main__":
    start(main)
