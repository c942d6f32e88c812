"""The law of the planner: the position frequency at which a model reaches that far.

A model trained on T tokens, of a corpus whose frequency per token is g(i) = f(i) / f(0), has the reach

    r = the last i before the first with  T g(i) < F(i),      ln F(i) = a + b ln i

F is fitted by least squares to points (r_k, f_k), the reach of finished runs and the position frequency there; b is 0,
so that F is a constant, with fewer than FREE_SLOPE distinct reaches, or groups of points: seeds of one window differ in
reach along that window's own f, whose slope is not the law's. Beyond the reaches that it was fitted to, F keeps its
value at the nearest of them. The limits are the prediction interval of one new
point under normal residuals:

    ln F(i) +- t(n - p) s sqrt(1 + x' (X'X)^-1 x),    x = (1, ln i),  p parameters

Source: arXiv:2410.18745, section 3, findings (1) to (3): similar effective lengths at similar f, whatever the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit  # scipy.stats takes half a second more to import

FloatArray = npt.NDArray[np.float64]
Needed = tuple[float, float | None, float | None]  # tokens, with limits
FREE_SLOPE = 4  # distinct reaches, and groups, from which on the slope b is fitted


class Point(NamedTuple):
    """What a finished model reached: `reach` tokens, at which its position frequency was `f`.

    `group` names points that are left out together. `tokens` were consumed, of a corpus whose f(i) / f(0) is
    `per_token`, (window,); both are None where only f is known. The reach of an `open` point lies there or beyond.
    """

    group: str
    reach: float
    f: float
    tokens: float | None = None
    per_token: FloatArray | None = None
    open: bool = False


class Expected(NamedTuple):
    """A reach in tokens with its limits; `whole` if it is the end of the window, beyond which nothing is trained.

    None where position 1 itself is too rare; `low` and `high` are None where one point gives no interval.
    """

    reach: int | None
    low: int | None
    high: int | None
    whole: bool

    @property
    def words(self) -> str:
        """The reach in words; the end of the window as >=.

        Example:
            >>> Expected(1023, None, None, True).words, Expected(None, 0, 5, False).words
            ('>=1,023', 'none')
        """
        return "none" if self.reach is None else f"{'>=' * self.whole}{self.reach:,}"

    @property
    def limits(self) -> str | None:
        """The limits in words."""
        return None if self.low is None else f"{self.low:,}-{self.high or 0:,}"


@dataclass(frozen=True, eq=False)
class Law:
    """ln F(i) = intercept + slope ln i, with the standard deviation of its residuals."""

    intercept: float
    slope: float
    points: tuple[Point, ...]
    confidence: float = 0.95

    @property
    def has_slope(self) -> bool:
        """Whether the slope was fitted."""
        return frees_slope(self.points)

    def log_i(self, i: FloatArray) -> FloatArray:
        """Return ln i, within the reaches that the law was fitted to."""
        reaches = [point.reach for point in self.points]
        return np.log(np.clip(i, min(reaches), max(reaches)))

    def design(self, i: FloatArray) -> FloatArray:
        """Return the rows x of the regression."""
        ones = np.ones_like(i)
        return np.stack([ones, self.log_i(i)] if self.has_slope else [ones], axis=-1)

    def needed(self, i: float) -> float:
        """Return F(i)."""
        return float(np.exp(self.log_needed(np.array([float(i)]))[0]))

    def log_needed(self, i: FloatArray) -> FloatArray:
        """Return ln F(i)."""
        needed: FloatArray = self.intercept + self.slope * self.log_i(i)
        return needed

    def margin(self, i: FloatArray) -> FloatArray | None:
        """Return half the width of the prediction interval of ln F(i); None where no residual is left."""
        x = self.design(np.array([point.reach for point in self.points], dtype=np.float64))
        free = len(x) - x.shape[1]
        if free < 1:
            return None
        observed = np.log([point.f for point in self.points])
        residuals = observed - self.log_needed(np.array([point.reach for point in self.points], dtype=np.float64))
        s = np.sqrt(residuals @ residuals / free)
        rows = self.design(i)
        leverage = np.einsum("ij,jk,ik->i", rows, np.linalg.inv(x.T @ x), rows)
        width: FloatArray = stdtrit(free, (1 + self.confidence) / 2) * s * np.sqrt(1 + leverage)
        return width

    def expect(self, per_token: FloatArray, tokens: float) -> Expected:
        """Predict the reach after `tokens` tokens of a corpus with the frequency `per_token`."""
        i = np.arange(1, len(per_token), dtype=np.float64)
        seen = np.log(np.maximum(per_token[1:] * tokens, np.finfo(float).tiny))
        needed, margin = self.log_needed(i), self.margin(i)
        reach = last_before(seen >= needed)
        if margin is None:
            return Expected(reach, None, None, reach == len(i))
        low, high = last_before(seen >= needed + margin), last_before(seen >= needed - margin)
        return Expected(reach, low or 0, high, reach == len(i))

    def tokens_for(self, per_token: FloatArray, target: int) -> Needed | None:
        """Return the tokens after which the reach is expected to be `target`, with limits; None beyond the window."""
        if not 1 <= target < len(per_token) or per_token[target] <= 0:
            return None
        i = np.array([float(target)])
        needed, margin = float(self.log_needed(i)[0]), self.margin(i)
        once = 1 / float(per_token[target])
        if margin is None:
            return float(np.exp(needed)) * once, None, None
        middle, low, high = np.exp(needed + float(margin[0]) * np.array([0.0, -1.0, 1.0])) * once
        return float(middle), float(low), float(high)


def fit(points: Sequence[Point], confidence: float = 0.95) -> Law:
    """Fit the law to points; those that are open are left out.

    Example:
        >>> law = fit([Point("a", 100, 4e6), Point("b", 400, 1e6)])  # two reaches: the constant is their geometric mean
        >>> round(float(np.exp(law.intercept))), law.slope
        (2000000, 0.0)
    """
    points = [point for point in points if not point.open]
    assert points, "the caller refuses a law without points"
    x, y = np.log([point.reach for point in points]), np.log([point.f for point in points])
    if not frees_slope(points):
        return Law(float(y.mean()), 0.0, tuple(points), confidence)
    slope, intercept = np.polyfit(x, y, 1)
    return Law(float(intercept), float(slope), tuple(points), confidence)


def frees_slope(points: Sequence[Point]) -> bool:
    """Return whether points suffice for a slope."""
    return min(len({point.reach for point in points}), len({point.group for point in points})) >= FREE_SLOPE


def last_before(passes: npt.NDArray[np.bool_]) -> int | None:
    """Return the last of the positions 1, 2, ... before the first that does not pass; None if that is the first."""
    return int(np.argmin(passes)) or None if not passes.all() else len(passes)
