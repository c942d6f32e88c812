"""Limits of the coefficients, and the comparison of models, both by whole runs.

The probes of one run depend on each other. Limits are quantiles of the coefficients over resamples in which whole runs
are drawn with replacement, as many as there are (the cluster bootstrap). Models are compared by the log likelihood of
runs, or of arms, that were left out of the fit: an arm left out asks for a window or a corpus that was not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from eval.reach.regression import Regression, fit, separable
from lab.train.arms import mean_with_limits


@dataclass(frozen=True)
class Limits:
    """Lower and upper limits of each column's coefficient, and the resamples of all that could be fitted."""

    low: dict[str, float]
    high: dict[str, float]
    fitted: int


def bootstrap(points: pd.DataFrame, whole: Regression, resamples: int, confidence: float, seed: int) -> Limits:
    """Compute limits of the coefficients; a column that a resample cannot separate has none from it."""
    generator = np.random.default_rng(seed)
    runs = [group for _, group in points.groupby("run", sort=False)]
    found: dict[str, list[float]] = {column: [] for column in whole.columns}
    fitted = 0
    for _ in range(resamples):
        drawn = pd.concat([runs[k] for k in generator.integers(0, len(runs), len(runs))], ignore_index=True)
        model = fit(drawn, separable(drawn, whole.columns)[0])
        fitted += model is not None
        for column, slope in (model.reported if model is not None else {}).items():
            found[column].append(slope)
    quantiles = ((1 - confidence) / 2, (1 + confidence) / 2)
    low, high = ({c: quantile(values, q) for c, values in found.items()} for q in quantiles)
    return Limits(low, high, fitted)


def quantile(values: Sequence[float], share: float) -> float:
    """Return one of the values, so that open coefficients, which are infinite, stay so; nan of none."""
    return float(np.quantile(values, share, method="nearest")) if values else np.nan


def held_out(points: pd.DataFrame, columns: Sequence[str], by: str) -> npt.NDArray[np.float64]:
    """Return the log likelihood of each run, or arm, under the fit to all others; nan where that cannot be made."""
    scores = []
    for _, group in points.groupby(by, sort=False):
        others = points.drop(index=group.index)
        model = fit(others, separable(others, columns)[0])
        scores.append(np.nan if model is None else float(model.log_likelihood(group).sum()))
    return np.array(scores)


def compare(points: pd.DataFrame, models: dict[str, tuple[str, ...]], by: str) -> pd.DataFrame:
    """Compare models by what was left out in turn: log likelihood, and that of the last model less it, with limits.

    Sums are over the runs, or arms, that every model could be fitted without.
    """
    scores = np.array([held_out(points, columns, by) for columns in models.values()])
    scores = scores[:, ~np.isnan(scores).any(0)]
    rows = []
    for name, score in zip(models, scores, strict=True):
        row = {"model": name, f"left out by {by}": scores.shape[1], "log likelihood": score.sum()}
        if scores.shape[1]:
            mean, low, high = mean_with_limits((scores[-1] - score).tolist())
            row |= {"all less it": mean, "from": low, "to": high}
        rows.append(row)
    return pd.DataFrame(rows).set_index("model")
