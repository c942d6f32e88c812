"""A result as a typed row, in one form for every measure, whichever version of the lab wrote its line.

A line of a file may give several rows: the summary of a probe has its effective length, its reach, f at each, and the
held-out loss. `convert` is the one place that knows the forms of lines.
"""

from collections.abc import Iterator
from typing import NamedTuple

from lab.core.types import Row as Line


class Origin(NamedTuple):
    """How a result came about: the lab's commit, start time, processor, protocol of the tests and their haystack."""

    commit: str | None
    started: str | None
    processor: str | None
    protocol: str | None
    haystack: str | None


class Row(NamedTuple):
    """One number with its limits.

    `metric` names it in tables. `first` and `last` are the ends of what was tested, of a number that may lie beyond
    them; a number without a score was looked for and is not determined. `alike` are the fields in which rows must agree
    to be results of the same tests, `record` is the line of the file.

    Units: `unit` is share, percent, tokens, pairs (of tokens), nats, perplexity or score.
    """

    run: str
    checkpoint: str | None
    tokens: int | None
    method: str | None
    measure: str
    distance: int | None
    seed: int | None
    f: float | None
    origin: Origin
    alike: Line
    record: Line
    metric: str = ""
    unit: str = ""
    length: int | None = None
    n: int | None = None
    passed: float | None = None
    score: float | None = None
    low: float | None = None
    high: float | None = None
    first: float | None = None
    last: float | None = None
    dips: int = 0


class Form(NamedTuple):
    """How the lines of a measure are read: its name and metric, a template, and the fields that must agree."""

    measure: str
    metric: str
    alike: tuple[str, ...]
    unit: str = "share"
    length: str = "length"  # field of the length


NEEDLES = ("needles", "digits", "required", "answer_budget", "haystack")
RECALL = ("evidence", "texts", "window")
FORMS = {
    "ruler": Form("ruler", "{task}", ("version", "answer_budget", "source", "standins"), "percent"),
    "passkey": Form("passkey", "passkey, depth {depth:.0%}", ("digits", "filler", "answer_budget")),
    "line_retrieval": Form("lines", "lines", ("answer_budget", "by", "asked"), length="asked"),
    "perplexity": Form("perplexity", "perplexity, stride {stride}", ("texts", "stride", "bos"), "perplexity"),
    "needles_by_method": Form("probe", "{required} of {needles} needles", NEEDLES),
    "harness": Form(
        "harness",
        "{task} {metric} {filter}",
        ("task_version", "definition", "metric", "filter", "fewshot", "limit", "chat", "truncate"),
        "score",
    ),
    "found_by_distance": Form("distance", "accuracy", ("needles", "digits", "answer_budget", "haystack")),
    "probe": Form("probe", "{required} of {needles} needles", NEEDLES),
    "recall": Form("recall", "gain from evidence", RECALL, "nats"),
    "no_evidence": Form("recall", "nats without evidence", RECALL, "nats"),
}


def convert(line: Line, run: str = "", started: str | None = None) -> Iterator[Row]:
    """Convert a line to rows; none for a line of another measure.

    Example:
        >>> summary = {"reach": 90.5, "first_distance": 24, "last_distance": 179, "threshold": 0.8, "dips": [24]}
        >>> [(row.metric, row.score, row.dips) for row in convert(summary)]
        [('reach at 0.8', 90.5, 1)]

    Raises: KeyError, TypeError or ValueError for a line that lacks a field.
    """
    form = find_form(line)
    tokens = line.get("consumed_tokens")
    protocol = line.get("protocol")
    row = Row(
        run=run,
        checkpoint=line.get("checkpoint") or (f"tokens-{tokens:015d}" if tokens else None),
        tokens=tokens,
        method=line.get("method"),
        measure="probe" if "effective_length" in line else "distance",
        distance=line.get("distance"),
        seed=line.get("seed"),
        f=line.get("f"),
        origin=Origin(line.get("commit"), started, str(line.get("hardware")), protocol, line.get("haystack")),
        # A summary is of no one sample of tests.
        alike={name: line.get(name) for name in ("protocol", *NEEDLES[:-1])},
        record=line,
    )
    if form is not None:
        if line["score"] is None:
            return
        passed = line.get("passed", line.get("found")) if form.unit == "share" and not line.get("stops") else None
        yield row._replace(
            measure=form.measure,
            metric=form.metric.format_map(line).removesuffix(" none"),
            unit=form.unit,
            length=line.get(form.length),
            n=line["n"],
            passed=passed,
            score=line["score"],
            low=line.get("low"),
            high=line.get("high"),
            alike={name: line.get(name) for name in ("protocol", "seed", *form.alike)},
        )
    elif {"effective_length", "reach"} & set(line):
        yield from split_summary(line, row)


def split_summary(line: Line, row: Row) -> Iterator[Row]:
    """List the numbers of the summary of a probe."""
    numbers = (  # score, its limits, the ends tested, metric, unit
        ("reach", "reach_low", "reach_high", "distance", "reach at {threshold:g}", "tokens"),
        ("f_at_reach", "", "", "", "f at the reach", "pairs"),
        ("effective_length", "low", "high", "length", "effective length at {threshold:g}", "tokens"),
        ("smooth", "smooth_low", "smooth_high", "length", "smooth effective length at {threshold:g}", "tokens"),
        ("f_at_effective_length", "", "", "", "f at the effective length", "pairs"),
        ("held_out_loss", "", "", "", "held-out loss", "nats"),
    )
    for name, low, high, ends, metric, unit in numbers:
        score = line.get(name)
        first, last = (line.get(f"{end}_{ends}") for end in ("first", "last"))
        # None is a result where a first value was tested: the model failed there, or reach is not determined.
        if name not in line or (score is None and first is None) or (unit == "pairs" and not score):
            continue
        n = line.get("tests", line.get("n")) if ends == "length" else line.get("n")
        yield row._replace(
            metric=metric.format_map({"threshold": 0.8, **line}),
            unit=unit,
            n=n if unit == "tokens" else None,
            score=score,
            low=line.get(low),
            high=line.get(high),
            first=first,
            last=last,
            dips=int(name == "reach" and bool(line.get("dips"))),
        )


def find_form(line: Line) -> Form | None:
    """Find the form of a line; training's own lines name no metric."""
    name = line.get("metric")
    protocol = str(line.get("protocol"))
    if protocol == "ruler":
        name = "ruler"
    elif protocol.startswith("lm-eval-"):
        name = "harness"
    elif name is None and "distance" in line:
        name = "found_by_distance"
    elif {"accuracy", "tests", "passed", "length"} <= set(line):
        name = "probe"
    return FORMS.get(str(name))
