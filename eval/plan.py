"""Plan a pretraining run: how often each distance will be seen, and how far the model can be expected to reach.

    python -m eval.plan [RUN ...] [--corpus=SHARDS_OR_CSV] [--window=2048,4096] [--tokens=1e12] [--target=2048]
        [--plot] [-o FOLDER]

    python -m eval.plan --window=4096 --tokens=1e12
    python -m eval.plan --corpus=shards/mine --window=2048,4096,8192 --tokens=3e11 --target=2048
    python -m eval.plan runs/mini-* --corpus=shards/synthetic-0a1b2c3d --window=128,192,256 --tokens=5e6
    python -m eval.plan --window=4096 --tokens=1e12 --config=configs/tiny_4k.yaml --plot

The law is a position frequency F at which a model reaches that far (eval/engine/law.py). It is fitted to the last probe
of the runs named, or without any to the two models of arXiv:2410.18745. Every group of points (a window; of the paper's
a point) is left out in turn and predicted from the others. Read the errors that are printed before the plan. Runs that
reach the longest that was tested are predicted, not fitted: their reach is a lower bound.
The corpus is a folder of token shards, a CSV file with `length,count` of documents, or the shape of SlimPajama.
The limits are of one new model of the size and kind of those fitted, no other; another size is flagged.
With --positions the command writes f, and the shares of f and of segments up to and from them (Figures 1 and 3 of
arXiv:2410.18745), instead of a plan.
Exit status: 0 done; 2 a mistake in the input, one line each on stderr.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from annotated_types import Ge, Gt, Le, Lt

from eval.engine.command import Form, Request, run
from eval.engine.law import Evidence, Expected, Law, Point, fit_law, frees_slope, measured, published
from eval.engine.lengths import SLIMPAJAMA, Documents, read_documents
from eval.engine.records import unpacked
from eval.engine.rows import Found, save, to_text
from lab import draw
from lab.command import start
from lab.config import load_experiment
from lab.data.config import Mode
from lab.positions.base_bound import base_warning
from lab.schema import Length, PathText, Positive, PositiveFloat, Section

FRACTIONS = (1 / 8, 1 / 4, 1 / 2, 3 / 4)  # of the window, where f is printed
SAME_SIZE = 1.5  # models whose sizes differ by more than this factor are not of one size
POINTS = 1000  # of a curve at most
FORMS = dict.fromkeys(("f", "share_to", "share_from", "segments_to"), ".4g")
SHARES = ("position", "window", "mode", *FORMS)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Section):
    """Options of the planner."""

    corpus: PathText = SLIMPAJAMA
    """Folder of token shards, CSV file with `length,count`, or slimpajama, the shape that the paper reports."""
    window: tuple[Annotated[int, Ge(8), Le(2**24)], ...] = (2048, 4096)
    """Training windows in tokens, with commas between them."""
    mode: tuple[Mode, ...] = ("natural",)
    """How documents become segments (data.mode), with commas between several."""
    tokens: PositiveFloat = 1e12
    """Tokens to train on."""
    target: Positive | None = None
    """Reach to aim for, in tokens: prints the tokens that each window and mode needs."""
    measure: Literal["reach", "effective_length"] = "reach"
    """What the runs are read for; the paper's points are effective lengths."""
    confidence: Annotated[float, Gt(0), Lt(1)] = 0.95
    """Probability of the prediction intervals."""
    config: PathText | None = None
    """Config of the run that is planned: its rotary base and size are compared with the windows and the law."""

    positions: tuple[Length, ...] = ()
    """Positions in tokens, with commas between them, whose shares of f are written in place of a plan."""

    def rules(self) -> list[str]:
        """Refuse positions that no pair of tokens has."""
        wide = [i for i in self.positions if i >= min(self.window)]
        return [f"positions={i}: must be < {min(self.window)}, the window; lower it" for i in wide]

    @property
    def arms(self) -> list[tuple[int, Mode]]:
        """Every window with every mode."""
        return list(product(self.window, self.mode))


def report(runs: Sequence[Path], options: PlanOptions, picture: Path | None) -> Found:
    """Fit, check and predict; the rows are the predictions, or with --positions the shares of f.

    Raises: LabError.
    """
    documents = read_documents(options.corpus)
    if options.positions:
        shares = list(shares_of(documents, options))
        return Found(to_text([{name: row[name] for name in SHARES} for row in shares], FORMS), shares)
    evidence = measured(runs, options.measure) if runs else [published(read_documents(SLIMPAJAMA))]
    laws = [fit_law(each.points, options.confidence) for each in evidence]
    parts = [f"corpus: {documents.name}; {options.tokens:.3g} tokens", frequencies(documents, options)]
    rows = []
    for law, each in zip(laws, evidence, strict=True):
        found = expected(documents, options, law, each)
        parts.append("\n".join([describe(law, each), *(f"left out: {fault}" for fault in each.left_out)]))
        parts += [held_out(each.points, options.confidence), predictions(found, options.tokens)]
        rows += found
    parts += flags(options, evidence)
    if picture is not None:
        draw_plan(documents, options, laws, picture)
    return Found("\n\n".join(parts), rows, picture=picture)


def expected(documents: Documents, options: PlanOptions, law: Law, evidence: Evidence) -> list[dict[str, Any]]:
    """List what a law predicts for each window and mode, in numbers."""
    rows = []
    for window, mode in options.arms:
        per_token = documents.frequency(window, mode)
        row = {"law": evidence.source, "tokens": options.tokens, "window": window, "mode": mode}
        row |= law.expect(per_token, options.tokens)._asdict()
        if options.target is not None:
            needed = law.tokens_for(per_token, options.target)
            row |= {"target": options.target, "target_tokens": None if needed is None else list(needed)}
        rows.append(row)
    return rows


def predictions(rows: Sequence[dict[str, Any]], tokens: float) -> str:
    """Lay out the reach to expect, and the tokens that a target takes."""
    table = []
    for row in rows:
        found = Expected(row["reach"], row["low"], row["high"], row["whole"])
        shown = {"window": f"{row['window']:,}", "mode": row["mode"], "expected reach": found.words}
        shown["limits"] = found.limits
        if "target" in row:
            needed = [None if x is None else f"{x:.3g}" for x in row["target_tokens"] or ()]
            names = (f"tokens for {row['target']:,}", "from", "to")
            shown |= dict(zip(names, needed or ["beyond the window", None, None], strict=True))
        table.append(shown)
    return "\n".join([f"expected after {tokens:.3g} tokens:", to_text(table)])


def frequencies(documents: Documents, options: PlanOptions) -> str:
    """Lay out f at fractions of each window."""
    rows = []
    for window, mode in options.arms:
        f = documents.frequency(window, mode) * options.tokens
        at = {f"f({fraction:g}L)": f"{f[int(fraction * window)]:.3g}" for fraction in FRACTIONS}
        rows.append({"window": f"{window:,}", "mode": mode, **at})
    return to_text(rows)


def describe(law: Law, evidence: Evidence) -> str:
    """Write the law in one line, with its points in a table."""
    formula = (
        f"ln F(i) = {law.intercept:.3f} {law.slope:+.3f} ln i"
        if frees_slope(law.points)
        else f"F = {law.needed(1):.3g}"
    )
    head = (
        f"law of {evidence.source}, models of {evidence.parameters:,.0f} parameters, n = {len(law.points)}: {formula}"
    )
    rows = [{"point": p.group, "reach": p.reach, "f at the reach": p.f} for p in law.points]
    return "\n".join([head, to_text(rows, {"reach": ",.0f", "f at the reach": ".3g"})])


def flags(options: PlanOptions, evidence: Sequence[Evidence]) -> list[str]:
    """Warn of what the law does not cover: rotary bases too small for a window, models of another size."""
    if options.config is None:
        return ["unchecked without --config: whether the rotary base serves the windows, and the size of the model"]
    model = load_experiment(Path(options.config)).model
    size = model.n_parameters()
    lines = [line for window in options.window if (line := base_warning(model.theta, window))]
    lines += [
        f"extrapolated: the law is of models of {each.parameters:,.0f} parameters, {options.config} has {size:,}"
        for each in evidence
        if not 1 / SAME_SIZE <= size / each.parameters <= SAME_SIZE
    ]
    return lines


def held_out(points: Sequence[Point], confidence: float) -> str:
    """Predict every group of points from the others, and lay out the errors."""
    groups = list(dict.fromkeys(point.group for point in points))
    if len(groups) < 2:
        return f"held out: nothing, all points are of {groups[0]}"
    rows, alone = [], []
    for group in groups:
        others = [point for point in points if point.group != group]
        if all(point.open for point in others):
            alone.append(f"{group} cannot be predicted: the law would be fitted to no other point")
            continue
        law = fit_law(others, confidence)
        rows += [{"left out": group, **prediction(law, point)} for point in points if point.group == group]
    parts = ["left out in turn and predicted from the others:", *alone]
    return "\n".join([*parts, *([to_text(rows, {"error": "+.0%"}), overall(rows)] if rows else ())])


def prediction(law: Law, point: Point) -> dict[str, Any]:
    """Predict one point: its reach, or, where its tokens are unknown, its f; None for what is not known.

    The error of an open point is how far the prediction falls short of it, 0 where it does not.
    """
    names = ("measured", "predicted", "limits", "within", "error")
    if point.tokens is None or point.per_token is None:
        f = law.needed(point.reach)
        return dict(zip(names, (f"f {point.f:.3g}", f"f {f:.3g}", None, None, f / point.f - 1), strict=True))
    found = law.expect(point.per_token, point.tokens)
    error = (found.reach or 0) / point.reach - 1
    within = None
    if found.low is not None and not point.open:  # reach has fractions
        within = "yes" if found.low <= point.reach <= (found.high or 0) + 1 else "no"
    shown = (f"{'>=' * point.open}{point.reach:,.0f}", found.words, found.limits, within)
    return dict(zip(names, (*shown, min(error, 0.0) if point.open else error), strict=True))


def overall(rows: Sequence[dict[str, Any]]) -> str:
    """Sum up the predictions.

    Example:
        >>> overall([{"error": -0.1, "within": "yes"}, {"error": 0.3, "within": "no"}, {"error": 0.2, "within": None}])
        'mean error, signs aside: 20% of 3; 1 of 2 within the limits'
    """
    known = [row["within"] for row in rows if row["within"]]
    text = f"mean error, signs aside: {np.mean([abs(row['error']) for row in rows]):.0%} of {len(rows)}"
    return text + (f"; {known.count('yes')} of {len(known)} within the limits" if known else "")


def shares_of(documents: Documents, options: PlanOptions) -> Iterator[dict[str, Any]]:
    """Make a result for each window, mode and position.

    `share_to` is the share of f up to a position, `share_from` from it on, `segments_to` that of segments as long.

    Example:
        >>> documents = Documents("one", np.array([4]), np.array([1.0]))
        >>> full = PlanOptions(window=(8,), positions=(2,), mode=("concatenated",), tokens=8.0)
        >>> [[round(row[name], 4) for name in SHARES[3:]] for row in shares_of(documents, full)]
        [[6.0, 0.5833, 0.5833, 0.0]]
    """
    for window, mode in options.arms:
        per_token = documents.frequency(window, mode)
        total, segments = per_token.sum(), np.diff(np.append(per_token, [0, 0]), 2)  # f is their double sum from behind
        for i in options.positions:
            yield {
                "window": window,
                "mode": mode,
                "corpus": options.corpus,
                "metric": "position_frequency",
                "position": i,
                "f": float(per_token[i] * options.tokens),
                "share_to": float(per_token[: i + 1].sum() / total),
                "share_from": float(per_token[i:].sum() / total),
                "segments_to": float(segments[:i].sum() / segments.sum()),
            }


def draw_plan(documents: Documents, options: PlanOptions, laws: Sequence[Law], output: Path) -> None:
    """Draw f by distance for every window and mode, the law, and the reach where they cross.

    Raises: MissingPackage without Altair, ConfigError where the picture cannot be written.
    """
    i = np.unique(np.linspace(1, max(options.window) - 1, POINTS).round())
    titles: dict[str, Any] = {"x_title": "relative position i (tokens)", "log_y": True}
    titles |= {"y_title": f"f(i) after {options.tokens:.3g} tokens", "title": "grey: f that the law asks for"}
    titles["y_limits"] = (options.tokens / 3e3, options.tokens * 1.5)
    charts = []
    for law in laws:
        needed, margin = law.log_needed(i), law.margin(i)
        rows = pd.DataFrame({"i": i, "f": np.exp(needed)})
        limits: dict[str, Any] = {}
        if margin is not None:
            rows = rows.assign(low=np.exp(needed - margin), high=np.exp(needed + margin))
            limits = {"low": "low", "high": "high"}
        charts.append(draw.draw(rows, "i", "f", color=draw.GREY, marks=False, **limits, **titles))
    curves, reached = [], []
    for window, mode in options.arms:
        f = documents.frequency(window, mode) * options.tokens
        reaches = [law.expect(f / f[0], options.tokens) for law in laws]
        name = f"window {window:,}, {mode}: reach {' or '.join(found.words for found in reaches)}"
        curves += [{"i": k, "f": f[int(k)], "arm": name} for k in i if k < window]
        reached += [{"i": found.reach, "f": f[found.reach]} for found in reaches if found.reach is not None]
    charts.append(draw.draw(curves, "i", "f", "arm", marks=False, **titles))
    if reached:
        charts.append(draw.draw(reached, "i", "f", kind="point", color="#222222", **titles))
    draw.save(draw.layer(*charts), output)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""

    def show(request: Request) -> Found:
        picture = (request.folder or Path("runs")) / "plan.png" if request.plots else None
        with unpacked(request.places) as runs:
            return save(report(runs, request.options, picture), request.folder, "plan")

    form = Form(options=PlanOptions, lacks=("--distance", "--frequency"), each=False, missing="")
    return run("eval.plan", __doc__, form, show, arguments)


if __name__ == "__main__":
    start(main)
