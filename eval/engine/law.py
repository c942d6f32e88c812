"""The law of the planner: the position frequency at which a model reaches that far.

A model trained on T tokens, of a corpus whose frequency per token is g(i) = f(i) / f(0), has

    r = the last i before the first with  T g(i) < F(i),      ln F(i) = a + b ln i

F is fitted by least squares to points (r_k, f_k): the reach of finished runs and the position frequency there. With
fewer than FREE_SLOPE distinct reaches, or groups of points, b is 0. The slope within one window is not the law's.
Beyond the reaches that it was fitted to, F keeps its value at the nearest of them. Limits are those of one new point:

    ln F(i) +- t(n - p) s sqrt(1 + x' (X'X)^-1 x),    x = (1, ln i),  p parameters

Source: arXiv:2410.18745, section 3, findings (1) to (3): similar effective lengths at similar f, whatever the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from eval.engine.lengths import LengthHistogram
from eval.engine.records import ProbedRun
from lab.counts import SavedCounts
from lab.errors import ConfigError
from lab.model.config import DecoderConfig

Floats = npt.NDArray[np.float64]
SOURCE, PARAMETERS = "arXiv:2410.18745, section 3", 1.3e9  # STRING's two models on SlimPajama
PUBLISHED = (  # finding, window, tokens or f in pairs, four-needle effective length
    (1, 4096, {"tokens": 400e9}, 1400),
    (1, 2048, {"tokens": 1000e9}, 1400),
    (3, 4096, {"tokens": 300e9}, 1024),
    (3, 2048, {"tokens": 300e9}, 1024),
    (2, 4096, {"f": 100e9}, 1280),
    (2, 2048, {"f": 100e9}, 1280),
)
FREE_SLOPE = 4  # distinct reaches, and groups of points, from which on the slope b is fitted
CONFIDENCE = 0.95


class Point(NamedTuple):
    """What a finished model reached: `reach` tokens, at which its position frequency was `f`.

    `group` names points that are left out together. `tokens` were consumed, of a corpus whose f(i) / f(0) is
    `per_token`, (window,); both are None where only f is known. The reach of an `open` point lies there or beyond.
    """

    group: str
    reach: float
    f: float
    tokens: float | None = None
    per_token: Floats | None = None
    open: bool = False


class Expected(NamedTuple):
    """A reach in tokens with its limits; `whole` if it is the end of the window, beyond which nothing is trained.

    None where position 1 itself is too rare; `low` and `high` are None where one point gives no interval.
    """

    reach: int | None
    low: int | None
    high: int | None
    whole: bool


@dataclass(frozen=True, eq=False)
class Law:
    """The law with the points that it was fitted to: ln F(i) = x a, x the powers of ln i, `variance` of the residuals.

    Shapes: coefficients (p,); inverse (p, p), that is (X'X)^-1. The variance is None where no residual is left.
    """

    points: tuple[Point, ...]
    coefficients: Floats
    inverse: Floats
    variance: float | None

    def design(self, i: Floats) -> Floats:
        """Return the rows x of the regression; ln i within the reaches that the law was fitted to."""
        reaches = [point.reach for point in self.points]
        return np.vander(np.log(np.clip(i, min(reaches), max(reaches))), len(self.coefficients), increasing=True)

    def log_needed(self, i: Floats) -> Floats:
        """Return ln F(i)."""
        needed: Floats = self.design(i) @ self.coefficients
        return needed

    def needed(self, i: float) -> float:
        """Return F(i)."""
        return float(np.exp(self.log_needed(np.array([i]))[0]))

    def margin(self, i: Floats) -> Floats | None:
        """Return half the width of the prediction interval of ln F(i); None where no residual is left."""
        if self.variance is None:
            return None
        rows = self.design(i)
        leverage = np.sum(rows @ self.inverse * rows, axis=1)
        t = stdtrit(len(self.points) - len(self.coefficients), (1 + CONFIDENCE) / 2)
        width: Floats = t * np.sqrt(self.variance * (1 + leverage))
        return width

    def expect(self, per_token: Floats, tokens: float) -> Expected:
        """Predict the reach after `tokens` tokens of a corpus with the frequency `per_token`."""
        i = np.arange(1, len(per_token), dtype=np.float64)
        seen = np.log(np.maximum(per_token[1:] * tokens, np.finfo(float).tiny))
        needed, margin = self.log_needed(i), self.margin(i)
        reach = last_before(seen >= needed)
        if margin is None:
            return Expected(reach, None, None, reach == len(i))
        low, high = (last_before(seen >= needed + side) for side in (margin, -margin))
        return Expected(reach, low or 0, high or 0, reach == len(i))

    def tokens_for(self, per_token: Floats, target: int) -> list[float] | None:
        """Return the tokens after which the reach is expected to be `target`, with limits; None beyond the window."""
        if not 1 <= target < len(per_token) or per_token[target] <= 0:
            return None
        margin = self.margin(np.array([float(target)]))
        ends = np.zeros(1) if margin is None else np.array([0.0, -1.0, 1.0]) * margin
        tokens: list[float] = (self.needed(target) * np.exp(ends) / per_token[target]).tolist()
        return tokens


def fit_law(points: Sequence[Point]) -> Law:
    """Fit the law to points; those that are open are left out.

    Example:
        >>> law = fit_law([Point("a", 100, 4e6), Point("b", 400, 1e6)])  # the constant is the geometric mean
        >>> round(law.needed(1)), len(law.coefficients)
        (2000000, 1)
    """
    points = [point for point in points if not point.open]
    assert points, "the caller refuses a law without points"
    groups = min(len({point.reach for point in points}), len({point.group for point in points}))
    columns = 2 if groups >= FREE_SLOPE else 1
    x = np.vander(np.log([point.reach for point in points]), columns, increasing=True)
    y = np.log([point.f for point in points])
    coefficients = np.linalg.solve(x.T @ x, x.T @ y)
    residuals, free = y - x @ coefficients, len(y) - columns
    variance = float(residuals @ residuals / free) if free else None
    return Law(tuple(points), coefficients, np.linalg.inv(x.T @ x), variance)


def last_before(passes: npt.NDArray[np.bool_]) -> int | None:
    """Return the last of the positions 1, 2, ... before the first that does not pass; None if that is the first."""
    return int(np.argmin(passes)) or None if not passes.all() else len(passes)


class Evidence(NamedTuple):
    """Points of models of one size, and what the law leaves out; `parameters` counts the model's."""

    source: str
    parameters: float
    points: list[Point]
    left_out: list[str]


def published(lengths: LengthHistogram) -> Evidence:
    """Read the paper's points; f where only tokens are known is that of the documents, as they are."""
    points = []
    for finding, window, given, reach in PUBLISHED:
        name = f"window {window:,}, {{}}, finding {finding}"
        if "f" in given:
            points.append(Point(name.format("f as published"), reach, given["f"]))
            continue
        tokens, per_token = given["tokens"], lengths.frequency(window, "natural")
        f = tokens * float(per_token[reach])
        points.append(Point(name.format(f"{tokens / 1e9:,.0f}B tokens"), reach, f, tokens, per_token))
    return Evidence(SOURCE, PARAMETERS, points, [])


def measured(runs: dict[str, ProbedRun]) -> Evidence:
    """Read the last probe of each run.

    Raises: ConfigError for models of several sizes, or where no run has a point.
    """
    sizes, evidence = set(), Evidence(f"{len(runs)} runs", 0, [], [])
    for name, run in runs.items():
        known = {field.name for field in fields(DecoderConfig)}  # settings of the model that are gone do not matter
        given = {key: run.settings[f"model.{key}"] for key in known if f"model.{key}" in run.settings}
        sizes.add(DecoderConfig(**given).n_parameters())
        record = run.probes[-1] if run.probes else {}
        reach, f = record.get("reach"), record.get("f_at_reach")
        if not reach or not f:
            evidence.left_out.append(f"{name}: its last probe has no reach, or nothing was counted there")
            continue
        is_open = record.get("reach_high") is None
        if is_open:
            evidence.left_out.append(f"{name}: reach {reach:g} may lie beyond the longest that was tested")
        counted = SavedCounts.read(run.path / "counts.npz").frequency()
        group, tokens = f"window {run.settings['data.window']:,}", record["consumed_tokens"]
        evidence.points.append(Point(group, float(reach), float(f), tokens, counted / counted[0], is_open))
    if len(sizes) > 1:
        raise ConfigError(f"RUNS: models of {sorted(sizes)} parameters; name runs of models of one size")
    if all(point.open for point in evidence.points):
        raise ConfigError(f"RUNS: no point to fit a law to ({'; '.join(evidence.left_out)}); name others")
    return evidence._replace(parameters=sizes.pop())
