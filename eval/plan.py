"""Plan a pretraining run: how often each distance will be seen, and how far the model can be expected to reach.

    probe-lab plan [RUN ...] [--corpus=SHARDS] [--window=2048,4096] [--tokens=1e12] [--target=2048]
        [-o FOLDER]

    probe-lab plan --window=4096 --tokens=1e12
    probe-lab plan --corpus=shards/mine --window=2048,4096,8192 --tokens=3e11 --target=2048
    probe-lab plan runs/mini-* --corpus=shards/synthetic-0a1b2c3d --window=128,192,256 --tokens=5e6

The law is one position frequency F at which models reach that far (eval/engine/law.py). It is fitted to the last probe
of the runs named, or without any to the two models of arXiv:2410.18745. Of runs that counted it, a second law takes the
demand from a distance on in place of f. Every group of points (an arm; of the paper's a point) is left out in turn and
predicted from the others, by each law and by one reach for all. Read the errors that are printed before the plan. Runs
that reach the longest that was tested are predicted, not fitted: their reach is a lower bound.
The corpus is a folder of token shards, or the shape of SlimPajama.
The 95% limits are of one new model of the size and kind of those fitted, no other.
With --positions the command writes no plan, but f there and the shares of f and of segments on both sides. These are
Figures 1 and 3 of arXiv:2410.18745.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from eval.engine.command import OF_RUNS, Form, Request, run
from eval.engine.law import Evidence, Law, Point, demand_per_token, fit_law, measured, published
from eval.engine.lengths import SLIMPAJAMA, FloatArray, read_lengths
from eval.engine.records import is_run, read_runs, unpacked
from eval.engine.rows import Found, Row, limits, to_text
from lab.command import start
from lab.data.config import Mode
from lab.schema import Length, PathText, Positive, PositiveFloat, Section

FRACTIONS = (1 / 8, 1 / 4, 1 / 2, 3 / 4)  # of the window, where f is printed
SHARES = ("f", "share_to", "share_from", "segments_to")
FORMS = {"window": ",", **dict.fromkeys(("f at the reach", "demand there"), ".3g")}
FORMS |= {**dict.fromkeys(("error", "error by demand"), "+.0%"), **dict.fromkeys(SHARES, ".4g")}
FORMS |= {f"f({part:g}L)": ".3g" for part in FRACTIONS}
Arm = tuple[Row, FloatArray]  # a window and a mode, and f(i) / f(0) of them


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Section):
    """Options of the planner."""

    corpus: PathText = SLIMPAJAMA
    """Folder of token shards, or slimpajama, the shape that the paper reports."""
    window: tuple[Annotated[int, Ge(8), Le(2**24)], ...] = (2048, 4096)
    """Training windows in tokens, with commas between them."""
    mode: tuple[Mode, ...] = ("natural",)
    """How documents become segments (data.mode), with commas between several."""
    tokens: PositiveFloat = 1e12
    """Tokens to train on."""
    target: Positive | None = None
    """Reach to aim for, in tokens: prints the tokens that each window and mode needs."""
    positions: tuple[Length, ...] = ()
    """Positions in tokens, with commas between them, whose shares of f are written in place of a plan."""

    def rules(self) -> list[str]:
        """Refuse positions that no pair of tokens has."""
        wide = [i for i in self.positions if i >= min(self.window)]
        return [f"positions={i}: must be < {min(self.window)}, the window; lower it" for i in wide]


def report(request: Request) -> Found:
    """Fit, check and predict; the rows are the predictions, or with --positions the shares of f."""
    options: PlanOptions = request.options
    lengths = read_lengths(options.corpus)
    pairs = product(options.window, options.mode)
    arms: list[Arm] = [({"window": window, "mode": mode}, lengths.frequency(window, mode)) for window, mode in pairs]
    if options.positions:
        rows = list(shares_of(arms, options))
        shown = [{name: row[name] for name in ("position", "window", "mode", *SHARES)} for row in rows]
        return request.save("plan", to_text(shown, FORMS), rows)
    with unpacked(request.places) as runs:
        evidence = measured(read_runs(runs)) if runs else published(read_lengths(SLIMPAJAMA))
    law = fit_law(evidence.points)
    n = sum(point.fits for point in evidence.points)
    size = f"models of {evidence.parameters:,.0f} parameters"
    rows = [
        {"law": evidence.source, "tokens": options.tokens, **arm, **law.expect(f, options.tokens)} for arm, f in arms
    ]
    if options.target is not None:
        for row, (_, f) in zip(rows, arms, strict=True):
            row |= {"target": options.target, "target_tokens": law.tokens_for(f, options.target)}
    laws = [f"law of {evidence.source}, {size}, n = {n}: F = {law.f:.3g}", *evidence.left_out]
    if evidence.demanded:
        asking = fit_law(evidence.demanded)
        laws.insert(1, f"law of demand, n = {sum(point.fits for point in evidence.demanded)}: G = {asking.f:.3g}")
        for row in rows if options.corpus != SLIMPAJAMA else ():
            asked = demand_per_token(Path(options.corpus), row["window"], row["mode"], evidence.evidence)
            row["by_demand"] = asking.expect(asked, options.tokens)
    seen = [arm | {f"f({x:g}L)": f[int(x * arm["window"])] * options.tokens for x in FRACTIONS} for arm, f in arms]
    parts = [
        f"corpus: {lengths.name}; {options.tokens:.3g} tokens",
        to_text(seen, FORMS),
        "\n".join(laws),
        held_out(evidence),
        predictions(rows, options),
    ]
    return request.save("plan", "\n\n".join(parts), rows)


def predictions(rows: Sequence[Row], options: PlanOptions) -> str:
    """Lay out the reach to expect, and the tokens that a target takes, unknown where it is beyond the window."""
    heads = [] if options.target is None else [f"tokens for {options.target:,}", "from", "to"]
    table = [
        {"window": row["window"], "mode": row["mode"], "expected reach": in_words(row), "limits": limits(row, ",")}
        | ({"by demand": in_words(row["by_demand"])} if "by_demand" in row else {})
        | dict(zip(heads, [*(row.get("target_tokens") or []), None, None, None], strict=False))
        for row in rows
    ]
    return f"expected after {options.tokens:.3g} tokens:\n{to_text(table, FORMS | dict.fromkeys(heads, '.3g'))}"


def in_words(found: Row) -> str:
    """Write a reach; the end of the window as >=.

    Example:
        >>> in_words({"reach": 1023, "whole": True}), in_words({"reach": None})
        ('>=1,023', 'none')
    """
    return "none" if found["reach"] is None else f"{'>=' * found['whole']}{found['reach']:,}"


def held_out(evidence: Evidence) -> str:
    """Predict every group of points from the others, and lay out the errors."""
    points, rows, constant = evidence.points, list[Row](), list[float]()
    for group in dict.fromkeys(point.group for point in points):
        fitted = [[p for p in each if p.group != group and p.fits] for each in (points, evidence.demanded)]
        law, asking = (fit_law(each) if each else None for each in fitted)
        reaches = [np.log(point.reach) for point in fitted[0]]
        for k, point in enumerate(points):
            if point.group == group and law is not None:
                row = {"left out": group, **prediction(law, point)}
                if asking is not None:
                    found = prediction(asking, evidence.demanded[k])
                    row |= {"demand there": found["f at the reach"], "by demand": found["predicted"]}
                    row |= {"error by demand": found["error"]}
                rows.append(row)
                constant.append(shortfall(float(np.exp(np.mean(reaches))), point))
    if not rows:
        return f"held out: nothing, no point of {points[0].group} can be predicted from others"
    known = [row["within"] for row in rows if row["within"]]
    text = f"mean error, signs aside: {np.mean([abs(row['error']) for row in rows]):.0%} of {len(rows)}"
    text += f"; {known.count('yes')} of {len(known)} within the limits" if known else ""
    lines = ["left out in turn and predicted from the others:", to_text(rows, FORMS), text]
    by_demand = [abs(row["error by demand"]) for row in rows if "error by demand" in row]
    lines += [f"by demand: {np.mean(by_demand):.0%} of {len(by_demand)}"] if by_demand else []
    lines.append(f"by one reach, the geometric mean of the others: {np.mean(np.abs(constant)):.0%} of {len(rows)}")
    return "\n".join(lines)


def shortfall(reach: float, point: Point) -> float:
    """Return the relative error of a predicted reach: of an open point how far it falls short, 0 where it does not."""
    error = reach / point.reach - 1
    return min(error, 0.0) if point.open else error


def prediction(law: Law, point: Point) -> Row:
    """Predict one point: its reach, or, where its tokens are unknown, its f; None for what is not known."""
    row: Row = {"f at the reach": point.f, "measured": f"{'>=' * point.open}{point.reach:,.0f}"}
    if point.tokens is None or point.per_token is None:
        unknown = {"limits": None, "within": None, "error": law.f / point.f - 1}
        return {**row, "predicted": f"f {law.f:.3g}", **unknown}
    found = law.expect(point.per_token, point.tokens)
    row |= {"predicted": in_words(found), "limits": limits(found, ","), "within": None}
    if found["low"] is not None and not point.open:  # reach has fractions
        row["within"] = "yes" if found["low"] <= point.reach <= found["high"] + 1 else "no"
    return {**row, "error": shortfall(found["reach"] or 0, point)}


def shares_of(arms: Sequence[Arm], options: PlanOptions) -> Iterator[Row]:
    """Make a result for each window, mode and position.

    `share_to` is the share of f up to a position, `share_from` from it on, `segments_to` that of segments as long.

    Example:
        >>> full = PlanOptions(window=(8,), positions=(2,), tokens=8.0)
        >>> [[round(row[name], 4) for name in SHARES] for row in shares_of([({}, np.arange(8, 0, -1) / 8)], full)]
        [[6.0, 0.5833, 0.5833, 0.0]]
    """
    for arm, per_token in arms:
        total = per_token.sum()
        segments = np.diff(np.append(per_token, [0, 0]), 2)  # f is their double sum from behind
        for i in options.positions:
            yield {
                **arm,
                "corpus": options.corpus,
                "metric": "position_frequency",
                "position": i,
                "f": float(per_token[i] * options.tokens),
                "share_to": float(per_token[: i + 1].sum() / total),
                "share_from": float(per_token[i:].sum() / total),
                "segments_to": float(segments[:i].sum() / segments.sum()),
            }


FORM = Form(options=PlanOptions, lacks=OF_RUNS, each=False, takes=is_run, missing="")
main = partial(run, "plan", __doc__, FORM, report)


if __name__ == "__main__":
    start(main)
