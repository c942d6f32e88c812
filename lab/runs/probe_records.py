"""Records of probes, completed by what follows from them: reach, demand, and loss by visible context."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.core.chart_style import BELOW, BEYOND, CENSORED, RUN, range_of
from lab.counts import SavedCounts
from lab.probe.reach import with_reach
from lab.runs.arms import classify_reach
from lab.runs.checkpoints import folder_name
from lab.runs.folder import Record, RunFolder


def list_contexts(probe: Record) -> Iterator[Record]:
    """List the held-out loss of a probe by visible context: from `context` earlier tokens to 2x that."""
    for context, loss in probe.get("context_loss", {}).items():
        yield {"consumed_tokens": probe["consumed_tokens"], "context": int(context), "loss": loss}


def shown_reach(row: Mapping[str, Any]) -> str:
    """Write the reach of a probe, a censored one as a bound.

    Example:
        >>> row = {"first_distance": 24, "last_distance": 179}
        >>> [shown_reach({**row, "reach": reach, "reach_high": 24}) for reach in (179.0, math.nan)]
        ['reach 179+', 'reach <24']
        >>> [shown_reach({**row, "reach": None, "reach_high": high}) for high in (64, None)]
        ['reach <24 to 64', 'reach <24 to 179+']
    """
    known = {}
    for name in ("reach", "reach_high", "first_distance", "last_distance"):
        if not math.isnan(row.get(name) or math.nan):
            known[name] = row[name]
    reach, high = known.get("reach"), known.get("reach_high")
    end = classify_reach(reach, known.get("first_distance"), known.get("last_distance"))
    if end == "below":
        bounds, outcomes = [known["first_distance"]], [BELOW]
        # Too few tests can show that the reach is below a higher distance only, or below none that was tested.
        if high is None:
            bounds.append(row["last_distance"])
            outcomes.append(BEYOND)
        elif high != known["first_distance"]:
            bounds.append(high)
            outcomes.append(RUN)
        return f"reach {range_of(bounds, outcomes)}"
    if reach is None:
        return "reach not measured"
    return f"reach {range_of([reach], [CENSORED.get(str(end), RUN)])}"


def with_demand(run: Path) -> Iterator[Record]:
    """Read the summaries of probes, each with how its reach is censored and the demand from it on, where counted."""
    for record in with_reach(RunFolder(run).records("probes.jsonl")):
        if "effective_length" not in record:  # the summary of a complete probe has one
            continue
        path = run / f"counts/{folder_name(record['consumed_tokens'])}.npz"
        reach, g_from = record.get("reach"), None
        if reach is not None and path.exists():
            g_from = SavedCounts.read(path).g_from(int(reach))
        end = classify_reach(reach, record.get("first_distance"), record.get("last_distance"))
        yield {**record, "censored": end, "g_from_reach": g_from}
