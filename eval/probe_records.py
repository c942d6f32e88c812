"""The lines of probes.jsonl that a probe writes: one for each length, then one for the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eval.curve import effective_lengths
from eval.effective_length import LengthResult, NeedleProbe

Record = dict[str, Any]


def length_record(probe: NeedleProbe, result: LengthResult, consumed_tokens: int, method: str) -> Record:
    """Make the line of one probed length."""
    return {
        "consumed_tokens": consumed_tokens,
        "length": result.length,
        "tests": result.tests,
        "passed": result.passed,
        "accuracy": result.accuracy,
        "low": result.low,
        "high": result.high,
        "verdict": "pass" if result.accuracy >= probe.config.threshold else "fail",
        "protocol": probe.config.protocol,
        "method": method,
        "seed": probe.seed,
    }


def summary_record(probe: NeedleProbe, results: Sequence[LengthResult], consumed_tokens: int, method: str) -> Record:
    """Make the line of one whole probe; a limit is null where the true value may lie beyond the last length."""
    config = probe.config
    return {
        "consumed_tokens": consumed_tokens,
        **effective_lengths(results, config.threshold),
        "confidence": config.confidence,
        "thresholds": [effective_lengths(results, threshold) for threshold in config.all_thresholds],
        "tests": sum(result.tests for result in results),
        "error": config.error_rate if config.sequential else None,
        "protocol": config.protocol,
        "method": method,
        "seed": probe.seed,
    }
