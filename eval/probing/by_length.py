"""Effective context length: the share of tests passed by length, as training probes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eval.engine.needle_tests import counts_of, stoppable
from eval.engine.rows import Row, shortened
from eval.engine.table import limits, to_text
from eval.probing.tests import NeedleMeasure, finished_tests
from lab.bars import Bar
from lab.draw import ORANGE, Rule, draw, layer
from lab.probe.curve import LengthResult, monotone_shares, shown_length
from lab.probe.protocols import PROTOCOLS
from lab.probe.records import length_record, summary_record
from lab.train.folder import RunFolder


class ByLength(NeedleMeasure):
    """The share of tests passed by length, and effective length."""

    own_steps = True

    def choose_lengths(self) -> list[int]:
        """Return all lengths that may be probed."""
        return self.probe.lengths

    @property
    def path(self) -> Path:
        """The folder of the records, named by the checkpoint and the settings."""
        model = self.subject.model
        settings = {**asdict(self.probe.config), "method": model.method, "weights": self.subject.weights}
        digest = shortened(json.dumps(settings, sort_keys=True))
        return self.request.folder or self.folder / f"probe-{model.consumed_tokens or 0:015d}-{digest}"

    def picture(self, rows: Sequence[Row]) -> Path:
        """Name the picture."""
        return self.path / "probe.png"

    def rows(self) -> list[Row]:
        """Probe length after length, and write the records that training's probe writes."""
        finished, tests = finished_tests(self.subject, self.probe, self.folder), self.probe.config.tests
        self.curve: list[LengthResult] = []
        with Bar(total=len(self.lengths) * tests, desc="probe", unit="test") as bar, stoppable(finished):
            finished.report = bar.update
            for result in self.probe.run(self.subject.generate, store=finished):
                self.curve.append(result)
                bar.total -= tests - result.tests
                bar.update(sum(each.tests for each in self.curve) - bar.n)
                bar.name(f"{result.length} tokens: {result.accuracy:.2f}")
        about, counts = self.subject.row, counts_of(self.subject)
        rows = [length_record(self.probe, result, about, counts) for result in self.curve]
        rows.append(summary_record(self.probe, self.curve, about, counts))
        folder = RunFolder(self.path)
        folder.write_records("probes.jsonl", rows)
        cases = [case for result in self.curve for case in result.cases]
        folder.write_cases(self.subject.model.consumed_tokens or 0, cases)
        return rows

    def text(self, rows: Sequence[Row]) -> str:
        """Write the curve, and the effective length at every threshold."""
        config, (*curve, summary) = self.probe.config, rows
        named = f"{config.confidence:.6g} limits"
        shown = [
            {name: row[name] for name in ("length", "passed", "tests", "accuracy")} | {named: limits(row, ".3f")}
            for row in curve
        ]
        forms = {**dict.fromkeys(("length", "passed", "tests"), ","), "accuracy": ".3f"}
        lines = [to_text(shown, forms), *map(effective, summary["thresholds"])]
        if config.sequential:
            lines.append(
                f"sequential: {summary['tests']:,} of {config.tests * len(curve):,} tests; at each length the verdict "
                f"is that of all {config.tests:,} with probability {1 - config.error_rate:.6g} or more"
            )
        return "\n".join([*lines, f"protocol {config.protocol}: {PROTOCOLS[config.protocol].summary}"])

    def chart(self, rows: Sequence[Row]) -> Any:
        """Draw the curve with its limits and monotone fit; the effective lengths, with limits, on their thresholds."""
        *curve, summary = rows
        model = self.subject.model
        trained = "" if model.consumed_tokens is None else f"; {model.consumed_tokens:,} tokens"
        rules = [Rule("y", each["threshold"], f"threshold {each['threshold']:g}") for each in summary["thresholds"]]
        rules += self.window_between(row["length"] for row in curve)
        style: dict[str, Any] = {"y_limits": (0, 1), "percent": True, "x_title": "length (tokens)"}
        style["y_title"] = "share of tests passed"
        names = ["tests passed", "monotone fit", "effective length"]
        fit = zip(self.curve, monotone_shares(self.curve), strict=True)
        lines = [{**row, "curve": names[0]} for row in curve]
        points = [
            {"length": each["smooth"], "accuracy": each["threshold"], "from": each["smooth_low"], "curve": names[2]}
            | {"to": self.curve[-1].length if each["smooth_high"] is None else each["smooth_high"]}
            for each in summary["thresholds"]
            if each["smooth"]
        ]
        title = f"{model.name}: {model.method}{trained}"
        shares = draw(lines, "length", "accuracy", "curve", None, "low", "high", names=names, rules=rules, title=title,
                      **style)  # fmt: skip
        fits = [{"length": result.length, "accuracy": share, "curve": names[1]} for result, share in fit]
        drawn = [shares, draw(fits, "length", "accuracy", "curve", names=names, marks=False, **style)]
        for point in points:
            ends = [{**point, "length": point[end]} for end in ("from", "length", "to") if point[end]]
            drawn.append(draw(ends, "length", "accuracy", color=ORANGE, **style))
        return layer(*drawn)


def effective(values: Mapping[str, Any]) -> str:
    """Write one threshold's effective length, by steps and smooth, each with its limits.

    Example:
        >>> smooth = {"smooth": 290.4, "smooth_low": 0.0, "smooth_high": None, "first_length": 128}
        >>> effective({"threshold": 0.8, "effective_length": 288, "low": 0, "high": None, **smooth})
        'effective length 288 at threshold 0.8, within <128 or more; smooth 290.4, within <128 or more'
    """
    first = values["first_length"]

    def within(prefix: str, form: str) -> str:
        low, high = (values[f"{prefix}{end}"] for end in ("low", "high"))
        end = "or more" if high is None else f"to {shown_length(high, first, form)}"
        return f"within {shown_length(low, first, form)} {end}"

    steps, smooth = shown_length(values["effective_length"], first), shown_length(values["smooth"], first, ",.1f")
    by_steps = f"effective length {steps} at threshold {values['threshold']:g}, {within('', ',')}"
    return f"{by_steps}; smooth {smooth}, {within('smooth_', ',.1f')}"
