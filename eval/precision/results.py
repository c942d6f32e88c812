"""The measurements of eval.precision as results, tables and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from eval.engine.table import to_text
from eval.precision.picture import draw_precision
from eval.precision.shift_difference import REFERENCE

Curve = tuple[str, str]  # weights, arithmetic
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measured:
    """The measurements for each weights and arithmetic.

    Shapes: by_token float64 (texts, len(shifts), n_tokens), the terms of D; by_length float64 (texts, len(lengths)),
        D_logit.
    """

    shifts: tuple[int, ...]
    lengths: tuple[int, ...]
    by_token: dict[Curve, Values]
    by_length: dict[Curve, Values]

    @property
    def differences(self) -> dict[Curve, Values]:
        """D of every text and shift, (texts, len(shifts))."""
        return {curve: values.sum(-1) for curve, values in self.by_token.items()}

    @property
    def n_tokens(self) -> int:
        """Tokens of the texts of D."""
        return int(next(iter(self.by_token.values())).shape[-1])


def records(measured: Measured) -> Iterator[dict[str, Any]]:
    """Make a result for every D, D_logit and profile; `std` is over texts, None of a single one."""
    tokens, at_0 = measured.n_tokens, measured.shifts.index(0)
    for (weights, arithmetic), by_text in measured.differences.items():
        curve = {"weights": weights, "arithmetic": arithmetic, "reference": REFERENCE}
        terms = measured.by_token[weights, arithmetic].mean(0)
        for shift, values, profile in zip(measured.shifts, by_text.T, terms, strict=True):
            yield {"metric": "D", **curve, "shift": shift, "tokens": tokens, **summary(values), **first(profile)}
        profile = terms[at_0].tolist()
        yield {"metric": "D_by_token", **curve, "shift": 0, "tokens": tokens, "n": len(by_text), "values": profile}
        for length, values in zip(measured.lengths, measured.by_length[weights, arithmetic].T, strict=True):
            yield {"metric": "D_logit", **curve, "shift": 0, "tokens": length, **summary(values)}


def summary(values: Values) -> dict[str, Any]:
    """Summarize a number over all texts."""
    return {
        "value": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else None,
        "n": len(values),
    }


def first(profile: Values) -> dict[str, float | None]:
    """Return the first token's share of D, None where D is 0."""
    return {"first_token_frac": float(profile[0] / profile.sum()) if profile.any() else None}


def tables(measured: Measured) -> str:
    """Format D and D_logit as tables, means over texts."""
    at_0 = measured.shifts.index(0)
    shares = [first(terms.mean(0)[at_0])["first_token_frac"] for terms in measured.by_token.values()]
    by_shift = means(measured.differences, "shift", measured.shifts)
    by_shift.loc["first token"] = ["-" if share is None else f"{share:.1%}" for share in shares]
    n_texts = len(next(iter(measured.by_length.values())))
    return "\n".join(
        [
            f"D (Eq. 4): {measured.n_tokens:,} tokens, mean over n = {n_texts}",
            to_text(by_shift),
            "",
            f"D_logit (Eq. 5): shift 0 against {REFERENCE}",
            to_text(means(measured.by_length, "tokens", measured.lengths)),
        ]
    )


def means(curves: dict[Curve, Values], name: str, at: Sequence[int]) -> pd.DataFrame:
    """Write the means over texts, a column for each weights and arithmetic."""
    columns = {" ".join(curve): values.mean(0) for curve, values in curves.items()}
    return pd.DataFrame(columns, pd.Index([f"{number:,}" for number in at], name=name)).map("{:.3g}".format)


def draw(measured: Measured, title: str, output: Path) -> None:
    """Draw the means over texts."""
    at_0 = measured.shifts.index(0)
    draw_precision(
        title,
        measured.shifts,
        {curve: values.mean(0) for curve, values in measured.differences.items()},
        {curve: values.mean(0)[at_0] for curve, values in measured.by_token.items()},
        measured.lengths,
        {curve: values.mean(0) for curve, values in measured.by_length.items()},
        output,
    )
