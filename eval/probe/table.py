"""A probe's results, laid out for reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.probe.config import ProbeConfig
from lab.probe.effective_length import LengthResult
from lab.probe.protocols import PROTOCOLS


def table(results: Sequence[LengthResult], config: ProbeConfig, summary: dict[str, Any]) -> str:
    """Lay out the curve, and the effective length at every threshold."""
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
        >>> smooth = {"smooth": 290.4, "smooth_low": 280.0, "smooth_high": None}
        >>> effective({"threshold": 0.8, "effective_length": 288, "low": 256, "high": None, **smooth})
        'effective length 288 at threshold 0.8, within 256 or more; smooth 290.4, within 280.0 or more'
    """
    high = "or more" if values["high"] is None else f"to {values['high']:,}"
    smooth_high = "or more" if values["smooth_high"] is None else f"to {values['smooth_high']:,.1f}"
    return (
        f"effective length {values['effective_length']:,} at threshold {values['threshold']:g}, within "
        f"{values['low']:,} {high}; smooth {values['smooth']:,.1f}, within {values['smooth_low']:,.1f} {smooth_high}"
    )
