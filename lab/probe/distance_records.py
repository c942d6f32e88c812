"""The lines of probes.jsonl about distances: one for each distance, and the reach in the summary of a probe."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from lab.counts import Counted, f_at
from lab.probe.effective_distance import DistanceProbe, DistanceResult, reach

Record = dict[str, Any]


def distance_record(
    probe: DistanceProbe, result: DistanceResult, about: Mapping[str, Any], counts: Counted | None
) -> Record:
    """Build the line of one distance; `about` holds what was probed, with which code and hardware.

    `f` is how often training had seen the distance when it was probed, null where that was not counted.
    """
    return {
        **about,
        "distance": result.distance,
        "n": result.tests,
        "found": result.found,
        "score": result.accuracy,
        "low": result.low,
        "high": result.high,
        "confidence": probe.config.confidence,
        "f": f_at(counts, result.distance),
        "log_prob": round(result.log_prob, 6),
        **one_number_tests(probe),
        "seconds": result.seconds,
    }


def one_number_tests(probe: DistanceProbe) -> Record:
    """Return the properties of the tests beside their distances; rows that agree in these have the same tests."""
    test = probe.test
    return {
        "needles": 1,
        "digits": test.digits,
        "prompt_tokens": test.prompt_tokens,
        "haystack": hashlib.sha256(test.haystack.encode()).hexdigest()[:16],
        "seed": test.seed,
    }


def reach_record(results: Sequence[DistanceResult], threshold: float, counts: Counted | None) -> Record:
    """Build the fields of a summary about reach."""
    found = reach(results, threshold)
    at = found["reach"]
    return {**found, "f_at_reach": None if at is None else f_at(counts, int(at))}
