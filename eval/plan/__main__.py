"""Plan a pretraining run: how often each distance will be seen, and how far the model can be expected to reach.

    python -m eval.plan [RUN ...] [--corpus=SHARDS_OR_CSV] [--window=2048,4096] [--tokens=1e12] [--target=2048]
        [--plot] [-o FOLDER]

    python -m eval.plan --window=4096 --tokens=1e12
    python -m eval.plan --corpus=shards/mine --window=2048,4096,8192 --tokens=3e11 --target=2048
    python -m eval.plan runs/mini-* --corpus=shards/synthetic-0a1b2c3d --window=128,192,256 --tokens=5e6
    python -m eval.plan --window=4096 --tokens=1e12 --config=configs/tiny_4k.yaml --plot

The law is a position frequency F at which a model reaches that far (eval/plan/law.py): fitted to the last probe of the
runs named, or, without any, to the two models of arXiv:2410.18745. Every group of points (a window; for the paper's,
a point) is left out in turn and predicted from the others, and the errors are printed: read them before the plan.
Runs that reach the longest that was tested are not fitted, but predicted: their reach is a lower bound.
The corpus is a folder of token shards, a CSV file with `length,count` of documents, or the shape of SlimPajama.
The limits are of one new model of the size and kind of those fitted, no other; another size is flagged.
Exit status: 0 done; 2 a mistake in the input, one line each on stderr.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.engine.command import NO_MODEL, Form, Request, run
from eval.engine.records import unpacked
from eval.engine.rows import Found, save
from eval.engine.table import to_text
from eval.plan.documents import SLIMPAJAMA, Documents, read_documents
from eval.plan.held_out import held_out
from eval.plan.law import Law, Needed, fit
from eval.plan.options import PlanOptions
from eval.plan.picture import draw_plan
from eval.plan.points import Evidence, measured, published
from lab.command import start
from lab.config import load_experiment
from lab.positions.base_bound import base_warning

FRACTIONS = (1 / 8, 1 / 4, 1 / 2, 3 / 4)  # of the window, where f is printed
SAME_SIZE = 1.5  # models whose sizes differ by more than this factor are not of one size


def report(runs: Sequence[Path], options: PlanOptions, picture: Path | None) -> Found:
    """Fit, check and predict; the rows are the predictions.

    Raises: LabError.
    """
    documents = read_documents(options.corpus)
    evidence = measured(runs, options.measure) if runs else [published(read_documents(SLIMPAJAMA))]
    laws = [fit(each.points, options.confidence) for each in evidence]
    parts = [f"corpus: {documents.name}; {options.tokens:.3g} tokens", frequencies(documents, options)]
    for law, each in zip(laws, evidence, strict=True):
        parts.append("\n".join([describe(law, each), *(f"left out: {fault}" for fault in each.left_out)]))
        parts += [held_out(each.points, options.confidence), predictions(documents, options, law)]
    parts += flags(options, evidence)
    if picture is not None:
        draw_plan(documents, options, laws, picture)
    rows = [row for law, each in zip(laws, evidence, strict=True) for row in expected(documents, options, law, each)]
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
    formula = f"ln F(i) = {law.intercept:.3f} {law.slope:+.3f} ln i" if law.has_slope else f"F = {law.needed(1):.3g}"
    head = (
        f"law of {evidence.source}, models of {evidence.parameters:,.0f} parameters, n = {len(law.points)}: {formula}"
    )
    rows = [{"point": p.group, "reach": p.reach, "f at the reach": p.f} for p in law.points]
    return "\n".join([head, to_text(rows, {"reach": ",.0f", "f at the reach": ".3g"})])


def predictions(documents: Documents, options: PlanOptions, law: Law) -> str:
    """Lay out the reach to expect, and the tokens that a target takes."""
    rows = []
    for window, mode in options.arms:
        per_token = documents.frequency(window, mode)
        found = law.expect(per_token, options.tokens)
        row = {"window": f"{window:,}", "mode": mode, "expected reach": found.words, "limits": found.limits}
        if options.target is not None:
            row |= target_columns(law.tokens_for(per_token, options.target), options.target)
        rows.append(row)
    return "\n".join([f"expected after {options.tokens:.3g} tokens:", to_text(rows)])


def target_columns(needed: Needed | None, target: int) -> dict[str, str | None]:
    """Write the tokens that a target takes."""
    words: tuple[str | None, ...] = ("beyond the window", None, None)
    if needed is not None:
        words = tuple(None if value is None else f"{value:.3g}" for value in needed)
    return dict(zip((f"tokens for {target:,}", "from", "to"), words, strict=True))


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


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""

    def show(request: Request) -> Found:
        picture = (request.folder or Path("runs")) / "plan.png" if request.plots else None
        with unpacked(request.places) as runs:
            return save(report(runs, request.options, picture), request.folder, "plan")

    form = Form(options=PlanOptions, refused=NO_MODEL, each=False, missing="")
    return run("eval.plan", __doc__, form, show, arguments)


if __name__ == "__main__":
    start(main)
