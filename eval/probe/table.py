"""A probe's results as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.probe.config import ProbeConfig
from lab.probe.curve import LengthResult, shown_length
from lab.probe.protocols import PROTOCOLS


def table(results: Sequence[LengthResult], config: ProbeConfig, summary: dict[str, Any]) -> str:
    """Format the curve, and the effective length at every threshold."""
    lines = [f"{'length':>8} {'passed':>8} {'tests':>8} {'accuracy':>9}   {config.confidence:.6g} limits"]
    lines += [
        f"{r.length:>8,} {r.passed:>8,} {r.tests:>8,} {r.accuracy:>9.3f}   {r.low:.3f} to {r.high:.3f}" for r in results
    ]
    lines += [effective(values) for values in summary["thresholds"]]
    if config.sequential:
        whole = config.tests * len(results)
        lines.append(
            f"sequential: {summary['tests']:,} of {whole:,} tests; at each length the verdict is that of all "
            f"{config.tests:,} with probability {1 - config.error_rate:.6g} or more"
        )
    lines.append(f"protocol {config.protocol}: {PROTOCOLS[config.protocol].summary}")
    return "\n".join(lines)


def effective(values: dict[str, Any]) -> str:
    """Write one threshold's effective length, by steps and smooth, each with its limits.

    Example:
        >>> smooth = {"smooth": 290.4, "smooth_low": 0.0, "smooth_high": None, "first_length": 128}
        >>> effective({"threshold": 0.8, "effective_length": 288, "low": 0, "high": None, **smooth})
        'effective length 288 at threshold 0.8, within <128 or more; smooth 290.4, within <128 or more'
    """
    first, threshold = values["first_length"], values["threshold"]
    steps, smooth = shown_length(values["effective_length"], first), shown_length(values["smooth"], first, ",.1f")
    return (
        f"effective length {steps} at threshold {threshold:g}, {limits(values, '', ',')}; smooth {smooth}, "
        f"{limits(values, 'smooth_', ',.1f')}"
    )


def limits(values: dict[str, Any], prefix: str, form: str) -> str:
    """Write the limits of an effective length."""
    low, high = (values[f"{prefix}{end}"] for end in ("low", "high"))
    first = values["first_length"]
    end = "or more" if high is None else f"to {shown_length(high, first, form)}"
    return f"within {shown_length(low, first, form)} {end}"
