"""The lines of probes.jsonl that a probe writes: one for each length, then a summary."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from lab.counts import Counted, f_at
from lab.probe.curve import effective_lengths
from lab.probe.effective_length import LengthResult, NeedleProbe

Record = dict[str, Any]


def tests_of(probe: NeedleProbe) -> Record:
    """Return the properties of a probe's tests beside their lengths; rows that agree in these have the same tests."""
    return {
        "protocol": probe.config.protocol,
        "needles": probe.needles,
        "digits": probe.digits,
        "required": probe.config.required,
        "answer_budget": probe.config.budget,
        "haystack": hashlib.sha256(probe.haystack.encode()).hexdigest()[:16],
        "seed": probe.seed,
    }


def length_record(probe: NeedleProbe, result: LengthResult, about: Mapping[str, Any], counts: Counted | None) -> Record:
    """Build the line of one probed length; `about` holds what was probed, with which code and hardware.

    `f` is how often training had seen the length as a distance when it was probed, null where that was not counted.
    Readers of run folders use `tests` and `accuracy`; `n` and `score`, with the same values, are common to all
    evaluations.
    """
    return {
        **about,
        "length": result.length,
        "tests": result.tests,
        "passed": result.passed,
        "accuracy": result.accuracy,
        "low": result.low,
        "high": result.high,
        "confidence": probe.config.confidence,
        "verdict": "pass" if result.accuracy >= probe.config.threshold else "fail",
        "n": result.tests,
        "score": result.accuracy,
        "f": f_at(counts, result.length),
        **tests_of(probe),
        "stops": stops_of(probe),
        "seconds": result.seconds,
    }


def summary_record(
    probe: NeedleProbe, results: Sequence[LengthResult], about: Mapping[str, Any], counts: Counted | None
) -> Record:
    """Build the summary line of a probe; a limit is null if the true value may lie beyond the last length."""
    config = probe.config
    seconds = [result.seconds for result in results if result.seconds is not None]
    values = effective_lengths(results, config.threshold)
    length = values["effective_length"]
    return {
        **about,
        **values,
        "f_at_effective_length": None if length is None else f_at(counts, int(length)),
        "confidence": config.confidence,
        "thresholds": [effective_lengths(results, threshold) for threshold in config.all_thresholds],
        "tests": sum(result.tests for result in results),
        "error": config.error_rate if config.sequential else None,
        **tests_of(probe),
        "seconds": round(sum(seconds), 3) if seconds else None,
    }


def stops_of(probe: NeedleProbe) -> Record | None:
    """Return the rule by which a sequential probe stops a length; None if all tests are run."""
    config = probe.config
    if not config.sequential:
        return None
    thresholds = list(config.all_thresholds)
    return {"tests": config.tests, "thresholds": thresholds, "error": config.error_rate, "round": config.round_size}
