"""Probe a trained model's effective context length with four needles: by length, by depth, or by method.

    probe-lab probe MODEL [--option=value ...] [--by=depth] [--distance=METHOD,...] [--plot] [-o FOLDER]

Options default to those of the run's own `probe` section. A model that is no run's, nor exported from one, has the
section's defaults, steps of an eighth of its window, and generated text to hide the numbers in:

    probe-lab probe runs/cpu_demo --tests=500 --max_length=768
    probe-lab probe models/Llama-3.1-8B --haystack=PaulGrahamEssays.json --protocol=released_llama31 --step=8192

--protocol=released and released_llama31 run the tests of the released script of arXiv:2410.18745, prompt for prompt.

--by=depth counts each number at its own depth and length (Figure 4 of the paper). It says in which third of the text
failures lie (Table 4; eval/engine/depths.py has the definitions):

    probe-lab probe runs/tiny_2k --by=depth --lengths=512,1024,1536,2048 --depths=20 --tests=500 --plot

Several methods in --distance are compared on the same tests, at the training length unless --lengths names others
(Table 1). Their settings are those of lab/positions/resolution.py, or parameters after a colon. McNemar's exact test
judges the difference to rope, corrected for the number of methods (Holm); an asterisk marks significance at 0.05:

    probe-lab probe runs/tiny_2k --distance=rope,ntk,yarn,rerope,self_extend,dca,string --plot
    probe-lab probe runs/tiny_2k --distance=rope,string,string:released_scaling=true,string:shift=1024,window=64

Results and every finished test are in probe-NAME-HASH.jsonl, in FOLDER or eval/ of the run (results/probe-NAME for
another model), a file for each method and prompt. After Ctrl-C (exit status 75) or a crash the same command continues,
and one for more tests or lengths reuses them.
"""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from eval.engine import answers, command, depths, methods, needles, run
from eval.engine.text import columns_text, limits
from lab.core import chart
from lab.core.command import start
from lab.core.errors import ConfigError
from lab.core.types import CONFIDENCE, Row
from lab.probe.config import ProbeConfig
from lab.results import statistics

BASE = "rope"  # the method that others are compared with
OTHERS = {  # options that --by=... reads
    "length": ("step", "max_length", "threshold"),
    "depth": ("lengths", "depths"),
    "method": ("lengths", "train_len"),
}


class ByLength(needles.NeedleMeasure):
    """The share of tests passed by length, and effective length."""

    columns = (
        ("length", "length", ","),
        ("passed", "passed", ","),
        ("tests", "tests", ","),
        ("accuracy", "accuracy", ".3f"),
        (f"{CONFIDENCE:g} limits", lambda row: limits(row, ".3f"), ""),
    )

    @classmethod
    def select_measure(cls, request: command.Request) -> type[run.Measure]:
        """Choose how results are presented, and reject options that this does not read."""
        options: needles.ProbeOptions = request.options
        several = len(request.distances) > 1
        by = options.by or ("method" if several else "length")
        errors = []
        for name in sorted({*itertools.chain(*OTHERS.values())} - {*OTHERS[by]}):
            value = getattr(options, name)
            if value is not None:
                errors.append(f"--{name}={json.dumps(value)}: would be ignored with --by={by}; leave it out")
        if by == "method":
            for key, value in request.overrides.items():
                errors.append(f"--{key}={value}: several methods are set by this command itself; leave it out")
        elif several:
            errors.append(f"--distance={','.join(request.distances)}: --by={by} takes one method; leave --by out")
        if errors:
            raise ConfigError(*errors)
        return {"length": ByLength, "depth": depths.ByDepth, "method": ByMethod}[by]

    def rows(self) -> list[Row]:
        """Probe length after length, and store the records that training's probe writes."""
        results = []
        with self.counting() as bar:
            finished = self.open_needles()
            for result in self.probe.run(self.subject, worker=finished):
                results.append(result)
                bar.name(f"{result.length} tokens: {result.accuracy:.2f}")
        subject, counts = self.subject.row, self.subject.counts
        rows = [self.probe.record(result, subject, counts) for result in results]
        return finished.add([*rows, self.probe.summarize(results, subject, counts)])

    def text(self, rows: Sequence[Row]) -> str:
        """Write the curve, and the effective length."""
        *curve, summary = rows
        table = columns_text(curve, self.columns)
        protocol = f"protocol {self.config.protocol}: {self.probe.protocol.SUMMARY}"
        return f"{table}\n{needles.format_effective_length(summary)}\n{protocol}"

    def chart(self, rows: Sequence[Row]) -> Any:
        """Plot the curve with its limits, and the effective length."""
        *curve, summary = rows
        rules = self.window_between(row["length"] for row in curve)
        rules.append(chart.Rule("y", summary["threshold"], f"threshold {summary['threshold']:g}"))
        if length := summary["effective_length"]:
            rules.append(chart.Rule("x", length, f"effective length {length:,}"))
        axes = chart.Axis("length", needles.X_TITLE), chart.Axis("score", "tests passed", limits=(0, 1), percent=True)
        return chart.plot_lines(curve, *axes, limits=True, title=self.title(), rules=rules)


class ByMethod(needles.NeedleMeasure):
    """Position methods on the same tests (arXiv:2410.18745, Table 1), and their differences to rope."""

    def prepare(self) -> None:
        """Build the tests and the methods."""
        self.train_len = train_len = self.options.train_len or self.subject.model.train_len
        # Every method is built from the model's own frequencies, not from those of the method before it.
        self.own = self.subject.model.decoder.frequencies
        # False sorts before True: the base comes first, as the others are compared with its tests.
        self.words = sorted(self.request.distances or methods.METHODS, key=lambda word: word != BASE)
        self.settings: dict[int, list[methods.Setting]] = {}
        for length in sorted(self.options.lengths or [train_len]):
            self.settings[length] = [methods.setting(word, train_len, length) for word in self.words]
        super().prepare()

    def choose_lengths(self, config: ProbeConfig, shortest: int) -> Sequence[int]:
        return list(self.settings)

    def rows(self) -> Iterator[Row]:
        """Run every method at every length, and test its difference to rope, which comes first."""
        config = self.config
        decoder = self.subject.model.decoder
        with self.counting(len(self.words)) as bar:
            for length, settings in self.settings.items():
                base: list[bool] | None = None  # which tests pass under rope
                for item in settings:
                    bar.name(f"{item.word} at {length:,} tokens")
                    # The tests were built before, so that every method gets the same prompts.
                    decoder.frequencies, decoder.distance = item.build(self.own)
                    finished = self.open_needles()
                    result = self.probe.run_at(self.subject, length, worker=finished)
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
                        "passed": result.passed,
                        **answers.share(result.passed, config.tests),
                        "numbers_found": sum(row["found"] for row in result.cases) / (config.tests * config.needles),
                        "versus_rope": None if base is None else statistics.pair(base, passed),
                        "seconds": result.seconds,
                    }
                    yield from finished.add([row])
                    if item.word == BASE:
                        base = passed

    def title(self) -> str:
        """Name the model and the tests; methods are in the table."""
        name, tests = self.subject.model.name, self.config.tests
        return f"{name}, trained at {self.train_len:,} tokens; {tests} tests at each length"

    def text(self, rows: Sequence[Row]) -> str:
        return "\n\n".join(
            methods_table(list(group)) for _, group in itertools.groupby(rows, lambda row: row["length"])
        )

    def chart(self, rows: Sequence[Row]) -> Any:
        """Plot the share of tests passed by method and length, with its limits in each cell."""
        cells = []
        for row in rows:
            text = f"{100 * row['score']:.0f} ({100 * row['low']:.0f}-{100 * row['high']:.0f})"
            cells.append({**row, "tests passed": row["score"], "text": text})
        return chart.plot_heat(
            cells,
            chart.Axis("length", needles.X_TITLE),
            chart.Axis("compared_as", ""),
            "tests passed",
            percent=True,
            title=self.title(),
            width=520,
            height=30 * len(self.words),
            rules=self.window_between(self.lengths),
        )


def methods_table(rows: Sequence[Row]) -> str:
    """Write the methods of one length, with limits and differences from rope."""
    import pandas as pd  # here, because other views start sooner without it

    has_base = any(row["versus_rope"] for row in rows)
    adjusted = statistics.holm(pd.Series([(row["versus_rope"] or {}).get("p", math.nan) for row in rows]))
    columns = (
        ("method", "compared_as", ""),
        ("n", "n", ","),
        ("share", "score", ".3f"),
        (f"{CONFIDENCE:g} limits", lambda row: limits(row, ".3f"), ""),
        ("to rope", format_difference, ""),
        ("p", "p", ".2g"),
        ("found", "numbers_found", ".3f"),
        ("settings", "method", ""),
    )
    shown = [{**row, "p": p} for row, p in zip(rows, adjusted, strict=True)]
    lines = [f"{rows[0]['length']:,} tokens", columns_text(shown, columns)]
    if has_base:
        test = f"{statistics.MCNEMAR}, p adjusted for {adjusted.count()} methods (Holm)"
        lines.append(f"* significant at {statistics.LEVEL:g}: {test}")
    return "\n".join(lines)


def format_difference(row: Row) -> str | None:
    """Write the difference from rope, with a star if its adjusted p is significant."""
    if row["versus_rope"] is None:
        return None
    mark = "*" if row["p"] <= statistics.LEVEL else " "
    return f"{row['versus_rope']['difference']:+.3f}{mark}"


main = ByLength.main

if __name__ == "__main__":
    start(main)
