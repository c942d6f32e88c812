"""The lines of probes.jsonl that a probe writes: one for each length, then a summary."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lab.counts import Counted, f_at
from lab.probe.curve import LengthResult, effective_lengths
from lab.probe.effective_distance import DistanceProbe, DistanceResult, reach
from lab.probe.effective_length import NeedleProbe

Record = dict[str, Any]
RESAMPLES = 1000


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
    config, stops = probe.config, None
    if config.sequential:  # the rule by which a length stops
        thresholds, size = list(config.all_thresholds), config.round_size
        stops = {"tests": config.tests, "thresholds": thresholds, "error": config.error_rate, "round": size}
    return {
        **about,
        "length": result.length,
        "tests": result.tests,
        "passed": result.passed,
        "accuracy": result.accuracy,
        "low": result.low,
        "high": result.high,
        "confidence": config.confidence,
        "verdict": "pass" if result.accuracy >= config.threshold else "fail",
        "n": result.tests,
        "score": result.accuracy,
        "f": f_at(counts, result.length),
        **tests_of(probe),
        "stops": stops,
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


def found_by_distance(
    cases: Sequence[Mapping[str, Any]],
    distances: Sequence[int],
    *,
    confidence: float,
    seed: int,
    resamples: int = RESAMPLES,
) -> list[dict[str, Any]]:
    """Assign each number to the nearest of the distances, rising, and compute each one's share found with limits.

    `cases` are rows with `distances` and `found_each`, one entry a number; older rows have neither and are left out, as
    are distances without a number.

    Example:
        >>> cases = [{"distances": [90, 50], "found_each": [False, True]}, {"distances": [52], "found_each": [True]}]
        >>> rows = found_by_distance(cases, [50, 100], confidence=0.9, seed=0)
        >>> [(row["distance"], row["n"], row["found"]) for row in rows]
        [(50, 2, 2), (100, 1, 0)]
    """
    known = [case for case in cases if "distances" in case and "found_each" in case]
    tests, numbers = np.zeros((2, len(known), len(distances)))
    middles = (np.array(distances[1:]) + np.array(distances[:-1])) / 2
    for row, case in enumerate(known):
        bins = np.searchsorted(middles, case["distances"])
        np.add.at(tests[row], bins, 1)
        np.add.at(numbers[row], bins, case["found_each"])
    rng, shares = np.random.default_rng(seed), np.full((resamples, len(distances)), np.nan)
    for number in range(resamples if known else 0):
        times = np.bincount(rng.integers(0, len(known), len(known)), minlength=len(known))
        drawn = times @ tests
        np.divide(times @ numbers, drawn, out=shares[number], where=drawn > 0)
    rows = []
    for place, (distance, n, found) in enumerate(zip(distances, tests.sum(0), numbers.sum(0), strict=True)):
        if n:
            low, high = np.nanquantile(shares[:, place], [(1 - confidence) / 2, (1 + confidence) / 2])
            share = {"score": float(found / n), "low": float(low), "high": float(high)}
            rows.append({"distance": int(distance), "n": int(n), "found": int(found), **share})
    return rows
