"""The law of the planner: the position frequency at which a model reaches that far.

A model trained on T tokens, of a corpus whose frequency per token is g(i) = f(i) / f(0), has

    r = the last i before the first with  T g(i) < F(i),      ln F(i) = a + b ln i

F is fitted by least squares to points (r_k, f_k): the reach of finished runs and the position frequency there. With
fewer than FREE_SLOPE distinct reaches, or groups of points, b is 0, as the slope within one window is not the law's.
Beyond the reaches that it was fitted to, F keeps its value at the nearest of them. Limits are those of one new point:

    ln F(i) +- t(n - p) s sqrt(1 + x' (X'X)^-1 x),    x = (1, ln i),  p parameters

Source: arXiv:2410.18745, section 3, findings (1) to (3): similar effective lengths at similar f, whatever the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from eval.engine.lengths import Documents
from lab.counts import SavedCounts
from lab.errors import ConfigError
from lab.model.config import DecoderConfig
from lab.train.arms import read_settings
from lab.train.folder import RunFolder

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
    """ln F(i) = intercept + slope ln i, with the points that it was fitted to."""

    intercept: float
    slope: float
    points: tuple[Point, ...]
    confidence: float = 0.95

    def design(self, i: Floats) -> Floats:
        """Return the rows x of the regression; ln i within the reaches that the law was fitted to."""
        reaches = [point.reach for point in self.points]
        log_i = np.log(np.clip(np.asarray(i, float), min(reaches), max(reaches)))
        return np.stack([np.ones_like(log_i), log_i], axis=-1)

    def log_needed(self, i: Floats) -> Floats:
        """Return ln F(i)."""
        needed: Floats = self.intercept + self.slope * self.design(i)[..., 1]
        return needed

    def needed(self, i: float) -> float:
        """Return F(i)."""
        return float(np.exp(self.log_needed(np.array([i]))[0]))

    def margin(self, i: Floats) -> Floats | None:
        """Return half the width of the prediction interval of ln F(i); None where no residual is left."""
        columns = slice(None if frees_slope(self.points) else 1)
        reaches = np.array([point.reach for point in self.points])
        x, rows = self.design(reaches)[:, columns], self.design(i)[:, columns]
        free = len(x) - x.shape[1]
        if free < 1:
            return None
        residuals = np.log([point.f for point in self.points]) - self.log_needed(reaches)
        leverage = np.einsum("ij,jk,ik->i", rows, np.linalg.inv(x.T @ x), rows)
        s = np.sqrt(residuals @ residuals / free)
        width: Floats = stdtrit(free, (1 + self.confidence) / 2) * s * np.sqrt(1 + leverage)
        return width

    def expect(self, per_token: Floats, tokens: float) -> Expected:
        """Predict the reach after `tokens` tokens of a corpus with the frequency `per_token`."""
        i = np.arange(1, len(per_token), dtype=np.float64)
        seen = np.log(np.maximum(per_token[1:] * tokens, np.finfo(float).tiny))
        needed, margin = self.log_needed(i), self.margin(i)
        reach = last_before(seen >= needed)
        if margin is None:
            return Expected(reach, None, None, reach == len(i))
        low, high = last_before(seen >= needed + margin), last_before(seen >= needed - margin)
        return Expected(reach, low or 0, high, reach == len(i))

    def tokens_for(self, per_token: Floats, target: int) -> tuple[float, float | None, float | None] | None:
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


def fit_law(points: Sequence[Point], confidence: float = 0.95) -> Law:
    """Fit the law to points; those that are open are left out.

    Example:
        >>> law = fit_law([Point("a", 100, 4e6), Point("b", 400, 1e6)])  # the constant is the geometric mean
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


@dataclass(frozen=True)
class Evidence:
    """Points of models of one size, and what the law leaves out; `parameters` counts the model's."""

    source: str
    parameters: float
    points: tuple[Point, ...]
    left_out: tuple[str, ...] = ()


def published(documents: Documents) -> Evidence:
    """Read the paper's points; f where only tokens are known is that of the documents, as they are."""
    points = []
    for finding, window, given, reach in PUBLISHED:
        per_token = documents.frequency(window, "natural")
        tokens = given.get("tokens")
        f = given["f"] if tokens is None else tokens * float(per_token[reach])
        what = "f as published" if tokens is None else f"{tokens / 1e9:,.0f}B tokens"
        known = () if tokens is None else (tokens, per_token)
        points.append(Point(f"window {window:,}, {what}, finding {finding}", reach, f, *known))
    return Evidence(SOURCE, PARAMETERS, tuple(points))


def measured(runs: Sequence[Path], measure: str) -> list[Evidence]:
    """Read the last probe of each run; models of another size are evidence of their own.

    Raises: ConfigError for a folder that is not a run's, or where no run has a point.
    """
    sizes: dict[int, list[tuple[str, Point | None, str]]] = {}
    for run in runs:
        if not (run / "config.yaml").exists():
            raise ConfigError(f"{run}: must be a run folder, with a config.yaml; name run folders")
        settings = read_settings(run)
        names = {field.name for field in fields(DecoderConfig)}  # settings of the model that are gone do not matter
        given = {name: settings[f"model.{name}"] for name in names if f"model.{name}" in settings}
        size = DecoderConfig(**given).n_parameters()
        last = max(RunFolder(run).probes(), key=lambda record: record["consumed_tokens"], default={})
        point, fault = point_of(last, measure, run, settings["data.window"])
        sizes.setdefault(size, []).append((run.name, point, fault))
    out = []
    for size, found in sorted(sizes.items()):
        points = tuple(point for _, point, _ in found if point is not None)
        left_out = tuple(f"{run}: {fault}" for run, _, fault in found if fault)
        if all(point.open for point in points):
            raise ConfigError(f"RUNS: no point of a model of {size:,} parameters ({'; '.join(left_out)}); name others")
        out.append(Evidence(f"{len(found)} runs", size, points, left_out))
    return out


def point_of(record: dict[str, Any], measure: str, run: Path, window: int) -> tuple[Point | None, str]:
    """Turn a probe's summary into a point, and return why it is none, or not one to fit the law to."""
    reach, f = record.get(measure), record.get(f"f_at_{measure}")
    high = record.get("reach_high" if measure == "reach" else "high")
    if not record:
        return None, "no probe"
    if reach is None:
        return None, f"{measure} is below the shortest that was tested, or was not probed"
    if not f:
        return None, f"nothing was counted at {reach:g} tokens"
    counted = SavedCounts.read(run / "counts.npz").frequency()
    known = (record["consumed_tokens"], counted / counted[0], high is None)
    fault = f"{measure} {reach:g} may lie beyond the longest that was tested" if high is None else ""
    return Point(f"window {window:,}", float(reach), float(f), *known), fault
