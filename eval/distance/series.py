"""What eval.distance knows of one method: one-number tests by distance, reach, and recorded four-needle tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eval.engine.subject import Subject
from lab.probe.effective_distance import DistanceProbe, DistanceResult
from lab.probe.records import found_by_distance, one_number_tests
from lab.train.choices import method_name
from lab.train.folder import RunFolder

Row = dict[str, Any]


@dataclass(frozen=True)
class Series:
    """One method's results: `rows` by distance, the row of `reach`, and `four`, the four-needle tests by distance.

    `shorter` are rows of the same distances in shorter prompts; they have no part in reach.
    """

    method: str
    results: Sequence[DistanceResult]
    rows: list[Row]
    reach: Row
    four: list[Row]
    shorter: list[Row] = field(default_factory=list)

    @property
    def lines(self) -> list[Row]:
        """The lines of the file of results; the metric tells them apart."""
        about = {name: self.reach[name] for name in ("model", "consumed_tokens", "method", "confidence")}
        rows = [*self.rows, *self.shorter]
        return [*rows, *({**about, "metric": "needles_by_distance", **row} for row in self.four), self.reach]


def key_of(subject: Subject, probe: DistanceProbe) -> Row:
    """Return all that decides how a one-number test comes out, beside its distance and number."""
    first = probe.test.case(probe.test.reachable[0], 0)  # names the tokenizer and how cases are drawn
    return {
        "tests": "one number",
        **one_number_tests(probe),
        "weights": subject.weights,
        "method": subject.model.method,
        "precision": subject.precision,
        "device": subject.device.type,
        "prompt": first.prompt_hash,
    }


def four_needles(subject: Subject, probe: DistanceProbe) -> dict[str, list[Row]]:
    """Read the four-needle tests that training recorded at this checkpoint, up to the window, by the run's method.

    Each number counts at the nearest of the probe's distances.
    """
    experiment, model = subject.model.experiment, subject.model
    if experiment is None or model.folder is None or model.consumed_tokens is None:
        return {}
    recorded = RunFolder(model.folder).read(f"cases/tokens-{model.consumed_tokens:015d}.jsonl")
    cases = [case for case in recorded if case.get("length", probe.test.window + 1) <= probe.test.window]
    rows = found_by_distance(cases, probe.distances, confidence=probe.config.confidence, seed=probe.test.seed)
    return {method_name(experiment): rows}
