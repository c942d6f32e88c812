"""Measure retrieval accuracy by distance, and how far back a model retrieves.

    probe-lab distance MODEL [--option=value ...] [--distance=METHOD,...] [--plot] [-o FOLDER]

Each test hides one number an exact number of tokens before the end of the prompt. Prompt and answer fill the training
window (lab/probe/effective_distance.py). A row has the retrieval accuracy with exact limits, the mean log-probability
of the right number, the same less that of a guess, and f, how often training saw the relative position that the method
gives to the distance. Reach is the largest distance at which the accuracy is at least the threshold. It is not
determined if tests are too few, or if fewer than half of the distances up to it pass. Nearer distances that fail are
named as dips (lab/probe/reach.py):

    probe-lab distance runs/cpu_demo --plot
    probe-lab distance runs/cpu_demo --distance=plain,string:shift=64,window=32,dca --plot
    probe-lab distance runs/cpu_demo --distances=64,96,128,160 --tests=400 --threshold=0.5
    probe-lab distance runs/cpu_demo --position.distance.method=rerope --position.distance.window=96
    probe-lab distance runs/cpu_demo --window=384 --plot
    probe-lab distance runs/cpu_demo --prompts=96,128,160 --plot
    probe-lab distance models/Llama-3.1-8B --haystack=essays.txt --points=6 --tests=50
    probe-lab distance "hf:OWNER/NAME@step*" -o series

With --prompts the accuracy is also measured in prompts of other lengths: a grid, plotted as a heat map. It separates a
limit of distance from one of the prompt's length. Reach is that of one prompt length, the window or --window.

All methods of --distance get the same tests. A name alone takes the parameters of lab/positions/resolution.py. Several
models, such as the revisions of a public one, are measured in turn; probe-lab compare puts their reach into one table.

Prints a table for each method. Writes distance-NAME-HASH.jsonl, a file for each method and prompt length: a line for
each distance, one for reach, and every finished test. After Ctrl-C (exit status 75) or a crash the same command
continues.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from eval.engine import methods, needles, run
from eval.engine.text import columns_text, limits, pivot, to_text
from lab.core.chart import Axis, Rule, concat, facet, plot_heat, plot_lines
from lab.core.command import Bar, start
from lab.core.errors import ConfigError
from lab.core.schema import Length, Share, Tests
from lab.core.types import CONFIDENCE, Row
from lab.probe.effective_distance import DistanceProbe, map_counts_to_distance
from lab.probe.measuring import reach_record
from lab.probe.reach import format_limits

X_TITLE = "distance of the number (tokens)"


class DistanceOptions(needles.OneNumberOptions):
    """Options of this command."""

    window: Length | None = None
    """Tokens that prompt and answer fill where reach is measured; default: the training window."""
    prompts: tuple[Length, ...] | None = None
    """Further lengths that prompt and answer fill, in tokens, at which the accuracy is measured; default: none."""
    threshold: Share = 0.8
    """Retrieval accuracy that must hold within reach."""
    batch: Tests | None = None
    """Tests that generate side by side; default: as in the run's own probe, or 64."""


class FoundByDistance(run.Measure):
    """Retrieval accuracy by distance under each method, and reach."""

    kind = "distance"
    options: DistanceOptions
    several = True
    replaces = False
    named_by = ("metric", "distance", "n", "threshold", "first_distance", "last_distance")

    def prepare(self) -> None:
        """Build the tests and the methods."""
        options, model = self.options, self.subject.model
        window = options.window or model.train_len
        self.probe = needles.one_number_probe(self.subject, options, window)
        read = partial(methods.read_distance, train_len=min(window, model.train_len), length=window)
        self.methods = [*map(read, self.request.distances)] or [model.decoder.distance]
        self.probes = [self.probe, *map(self.build_probe, sorted({*(options.prompts or ())} - {window}))]
        # A model rejects a method that it cannot run when it is set: here, before time is spent on others.
        for method in self.methods:
            model.decoder.distance = method

    def build_probe(self, length: int) -> DistanceProbe:
        """Build the tests of another prompt length, at the window's distances for which it has room.

        Raises: LabError.
        """
        first = self.probe.distances[0]
        last = self.probe.reachable[-1] + length - self.probe.window
        if first > last:
            fix = f"use {length + first - last} or more"
            raise ConfigError(f"--prompts={length}: has no room for a distance of {first}; {fix}")
        fitting = tuple(distance for distance in self.probe.distances if distance <= last)
        return needles.one_number_probe(self.subject, replace(self.options, distances=fitting, points=None), length)

    def rows(self) -> Iterator[Row]:
        """Run the tests that are not finished, and write a row for each distance and one for reach of every method."""
        n_tests = sum(len(probe.distances) * probe.tests for probe in self.probes)
        with Bar(total=len(self.methods) * n_tests, desc=self.kind, unit="test") as self.bar:
            for method in self.methods:
                self.subject.model.decoder.distance = method
                self.bar.name(self.subject.model.method)
                for probe in self.probes:
                    yield from self.run_tests(probe)

    def run_tests(self, probe: DistanceProbe) -> list[Row]:
        """Run the tests of a prompt length that are not finished, and store and return the rows of all.

        Reach is that of the window's prompts.
        """
        about = {**self.subject.row, "metric": "found_by_distance"}
        if probe is not self.probe:
            about |= {"metric": "found_by_prompt", "prompt": probe.window}
        first = probe.case(probe.reachable[0], 0)
        # f is that of the relative position that the method gives to a distance.
        counts = map_counts_to_distance(self.subject.counts, self.subject.model.decoder.distance, len(first.prompt_ids))
        finished = self.open_tests({"tests": "one number", **probe.describe_tests()}, first, probe.tests, "distance")
        results = list(probe.run(self.subject, worker=finished))
        rows = [probe.record(result, about, counts) for result in results]
        if probe is self.probe:
            threshold = probe.config.threshold
            reach = {"metric": "reach", "threshold": threshold, "confidence": CONFIDENCE, "n": probe.tests}
            rows.append({**about, **reach, **reach_record(results, threshold, counts)})
        return finished.add(rows)

    def title(self) -> str:
        config = self.probe.config
        tests = f"{config.distance_tests} tests at each distance, numbers of {config.digits} digits"
        return f"{self.subject.model.name}, window {self.probe.window:,}; {tests}"

    def text(self, rows: Sequence[Row]) -> str:
        """Write a table for each method, and its reach."""
        chance = -math.log(9 * 10 ** (self.probe.config.digits - 1))  # of a number whose first digit is not 0
        columns = (
            ("distance", "distance", ","),
            ("found", "found", ","),
            ("tests", "n", ","),
            ("accuracy", "score", ".3f"),
            (f"{CONFIDENCE:g} limits", lambda row: limits(row, ".3f"), ""),
            ("log p", "log_prob", ".2f"),
            ("nats over chance", lambda row: row["log_prob"] - chance, "+.2f"),
            ("f", "f", ",.0f"),
        )
        lines = []
        for method in dict.fromkeys(row["method"] for row in rows):
            own = [row for row in rows if row["method"] == method]
            distances = select(own, "found_by_distance")
            lines += [method, columns_text(distances, columns), reach_line(*select(own, "reach"))]
            found = sum(row["found"] for row in distances)
            tests = sum(row["n"] for row in distances)
            if found < 0.02 * tests:  # so few may be guessed
                lines.append(
                    f"{found} of {tests} numbers found: accuracy does not measure this model. Compare its nats\n"
                    "over chance, or run probe-lab recall: its gain from evidence needs no answer."
                )
            lines.append("")
            if len(self.probes) > 1:
                table = pivot(self.grid(own), "prompt", "distance").reindex(columns=self.probe.distances)
                lines += ["accuracy by length of the prompt", to_text(table.rename("{:,}".format), ".2f"), ""]
        return "\n".join(lines)

    def grid(self, rows: Sequence[Row]) -> list[Row]:
        """List the accuracies of all prompt lengths, the longest first."""
        cells = [{**row, "prompt": self.probe.window} for row in select(rows, "found_by_distance")]
        return sorted([*cells, *select(rows, "found_by_prompt")], key=lambda row: (-row["prompt"], row["distance"]))

    def chart(self, rows: Sequence[Row]) -> Any:
        """Plot accuracies with limits; below, f of the training, and the grid of prompt lengths."""
        window = self.probe.window
        threshold = self.probe.config.threshold
        shares = select(rows, "found_by_distance")
        ends = (self.probe.distances[0], max(window, *self.probe.distances))
        # All panels name the methods in one order, which gives each method the same colour in all.
        names = list(dict.fromkeys(row["method"] for row in shares))
        plot = partial(plot_lines, x=Axis("distance", X_TITLE, limits=ends), series="method", names=names)
        y = Axis("score", "retrieval accuracy", limits=(0, 1), percent=True)
        rules = [Rule("y", threshold, f"threshold {threshold:g}"), Rule("x", window, "window")]
        panels: list[Any] = [plot(shares, y=y, limits=True, rules=rules, title=self.title())]
        # A logarithmic axis has no 0, and a model of no run has no f.
        counted = [row for row in shares if row["f"]]
        if counted:
            panels.append(plot(counted, y=Axis("f", "f (pairs trained)", log=True), height=90, legend=False))
        if len(self.probes) > 1:  # a map for each method
            axes = Axis("distance", X_TITLE), Axis("prompt", "prompt (tokens)")
            heat = plot_heat(self.grid(rows), *axes, "score", percent=True, height=90)
            panels.append(facet(heat, "method", columns=1))
        return concat(*panels)


def select(rows: Sequence[Row], metric: str) -> list[Row]:
    return [row for row in rows if row["metric"] == metric]


def reach_line(row: Row) -> str:
    """Write reach with its limits, f and dips; a range where the tests are too few for a number.

    Example:
        >>> row = {"threshold": 0.8, "first_distance": 20, "last_distance": 168, "f_at_reach": 21000, "dips": []}
        >>> reach_line({**row, "reach": 128.9, "reach_low": 120.0, "reach_high": 133.5, "dips": [20, 31]})
        'reach 128.9 at threshold 0.8, within 120.0 to 133.5; f 21,000; dips below the threshold at 20, 31 tokens'
        >>> reach_line({**row, "reach": 168.0, "reach_low": None, "reach_high": None})
        'reach 168, the end, at threshold 0.8, within <20 to the end; f 21,000'
        >>> reach_line({**row, "reach": None, "reach_low": None, "reach_high": 64.0})
        'reach not determined at threshold 0.8, within <20 to 64.0'
        >>> reach_line({**row, "reach": None, "reach_low": None, "reach_high": 20})
        'no reach at threshold 0.8: fails at 20 tokens already; docs/install.md, "If it does not work", has reasons'
        >>> reach_line({**row, "reach": None, "reach_low": 120.0, "reach_high": None, "best_distance": 168})
        'reach not determined at threshold 0.8: fewer than half of the distances pass; best at 168 tokens'
    """
    reach, first, last = row["reach"], row["first_distance"], row["last_distance"]
    at = f"at threshold {row['threshold']:g}"
    within = f"within {format_limits(row)}"
    if best := row.get("best_distance"):
        return f"reach not determined {at}: fewer than half of the distances pass; best at {best:,} tokens"
    if reach is None and row["reach_high"] == first:
        return f'no reach {at}: fails at {first:,} tokens already; docs/install.md, "If it does not work", has reasons'
    if reach is None:
        return f"reach not determined {at}, {within}"
    text = f"{reach:,.1f}" if reach < last else f"{last:,}, the end,"
    f = "-" if row["f_at_reach"] is None else f"{row['f_at_reach']:,}"
    line = f"reach {text} {at}, {within}; f {f}"
    if row["dips"]:
        line += f"; dips below the threshold at {', '.join(map(str, row['dips']))} tokens"
    return line


main = FoundByDistance.main

if __name__ == "__main__":
    start(main)
