"""The law of the planner: one position frequency F, at which models reach that far.

A model trained on T tokens, of a corpus whose frequency per token is g(i) = f(i) / f(0), has

    r = the last i before the first with  T g(i) < F

F is the geometric mean of f_k at the reach of finished runs, k = 1 .. n. Limits are those of one new model:

    ln F +- t(n - 1) s sqrt(1 + 1/n),    s the standard deviation of ln f_k

The law of demand is the same with the demand from i on, the sum of g(d) over d >= i, in the place of f(i): G is the
geometric mean of the demand from the reach on. A model that reaches where nothing asks contradicts it whatever G is: it
is predicted, but not fitted.

Source: arXiv:2410.18745, section 3, findings (1) to (3): similar effective lengths at similar f, whatever the window.
The law of demand is this lab's own (docs/demand.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from eval.engine.lengths import FloatArray, LengthHistogram
from eval.engine.records import ProbedRun
from eval.engine.rows import Row
from lab.counts import PositionCounts, SavedCounts
from lab.counts.demand import by_distance
from lab.counts.pairs import sum_to_the_end
from lab.data.arrangement import IGNORE
from lab.data.config import Mode
from lab.data.packing import PackSettings, PackStream
from lab.data.segments import index_segments
from lab.data.shards import TokenStore
from lab.errors import ConfigError
from lab.evidence.methods import EVIDENCE_METHODS
from lab.model.config import DecoderConfig
from lab.train.arms import name_arms

SOURCE, PARAMETERS = "arXiv:2410.18745, section 3", 1.3e9  # STRING's two models on SlimPajama
PUBLISHED = (  # finding, window, tokens, f, four-needle effective length
    (1, 4096, 400e9, None, 1400),
    (1, 2048, 1000e9, None, 1400),
    (3, 4096, 300e9, None, 1024),
    (3, 2048, 300e9, None, 1024),
    (2, 4096, None, 100e9, 1280),
    (2, 2048, None, 100e9, 1280),
)
CONFIDENCE = 0.95
READ = 3_000_000  # tokens at most
SEGMENTS = 16  # of a pack


class Point(NamedTuple):
    """What a finished model reached: `reach` tokens, at which its position frequency, or its demand, was `f`.

    `group` names points that are left out together. `tokens` were consumed, of a corpus whose f(i) / f(0) is
    `per_token`, (window,); both are None where only f is known. The reach of an `open` point lies there or beyond.
    Points that are open, or whose `f` is 0, are predicted and not fitted.
    """

    group: str
    reach: float
    f: float
    tokens: float | None = None
    per_token: FloatArray | None = None
    open: bool = False

    @property
    def fits(self) -> bool:
        """Whether a law can be fitted to it."""
        return not self.open and self.f > 0


class Law(NamedTuple):
    """ln F, and how far its limits are above and below it; None where one point gives no limits."""

    log_f: float
    width: float | None

    @property
    def f(self) -> float:
        """The frequency F."""
        return float(np.exp(self.log_f))

    def expect(self, per_token: FloatArray, tokens: float) -> Row:
        """Predict the reach after `tokens` tokens of a corpus with the frequency `per_token`, with its limits.

        `whole` is whether it is the end of the window, beyond which nothing is trained. `reach` is None where position
        1 itself is too rare. `low` and `high` are None where one point gives no interval.
        """
        seen = np.log(np.maximum(per_token[1:] * tokens, np.finfo(float).tiny))
        reach = last_before(seen >= self.log_f)
        low = high = None
        if self.width is not None:
            low, high = (last_before(seen >= self.log_f + end) or 0 for end in (self.width, -self.width))
        return {"reach": reach, "low": low, "high": high, "whole": reach == len(seen)}

    def tokens_for(self, per_token: FloatArray, target: int) -> list[float] | None:
        """Return the tokens after which the reach is expected to be `target`, with limits; None beyond the window."""
        if not 1 <= target < len(per_token) or per_token[target] <= 0:
            return None
        ends = [0.0] if self.width is None else [0.0, -self.width, self.width]
        return [float(np.exp(self.log_f + end) / per_token[target]) for end in ends]


def fit_law(points: Sequence[Point]) -> Law:
    """Fit the law to points; those that are open, or where f is 0, are left out.

    Example:
        >>> law = fit_law([Point("a", 100, 4e6), Point("b", 400, 1e6)])
        >>> round(law.f)
        2000000
    """
    logs = np.log([point.f for point in points if point.fits])
    assert len(logs), "the caller refuses a law without points"
    if len(logs) == 1:
        return Law(float(logs[0]), None)
    t = stdtrit(len(logs) - 1, (1 + CONFIDENCE) / 2)
    return Law(float(logs.mean()), float(t * logs.std(ddof=1) * np.sqrt(1 + 1 / len(logs))))


def last_before(passes: npt.NDArray[np.bool_]) -> int | None:
    """Return the last of the positions 1, 2, ... before the first that does not pass; None if that is the first."""
    return int(np.argmin(passes)) or None if not passes.all() else len(passes)


class Evidence(NamedTuple):
    """Points of models of one size, `parameters`, and a line for each run that a law leaves out.

    `demanded` are the same points for the law of demand, none if some cannot be; `evidence` is their method's settings.
    """

    source: str
    parameters: float
    points: list[Point]
    left_out: list[str]
    demanded: list[Point]
    evidence: Row


def published(lengths: LengthHistogram) -> Evidence:
    """Read the paper's points; f where only tokens are known is that of the documents, as they are."""
    points = []
    for finding, window, tokens, f, reach in PUBLISHED:
        known = "f as published" if tokens is None else f"{tokens / 1e9:,.0f}B tokens"
        per_token = None if tokens is None else lengths.frequency(window, "natural")
        at_reach = f if tokens is None or per_token is None else tokens * float(per_token[reach])
        points.append(Point(f"window {window:,}, {known}, finding {finding}", reach, at_reach or 0, tokens, per_token))
    return Evidence(SOURCE, PARAMETERS, points, [], [], {})


def measured(runs: dict[str, ProbedRun]) -> Evidence:
    """Read the last probe of each run.

    Raises: ConfigError for models of several sizes, or where no run has a point.
    """
    sizes: set[int] = set()
    points: list[Point] = []
    demanded: list[Point] = []
    left_out = []
    methods = []
    arms = name_arms({name: run.settings for name, run in runs.items()})
    for name, run in runs.items():
        known = {field.name for field in fields(DecoderConfig)}  # settings of the model that are gone do not matter
        given = {key: run.settings[f"model.{key}"] for key in known if f"model.{key}" in run.settings}
        sizes.add(DecoderConfig(**given).n_parameters())
        record = run.probes[-1] if run.probes else {}
        reach, f = record.get("reach"), record.get("f_at_reach")
        is_open = record.get("reach_high") is None
        if not reach or not f or is_open:
            what = f"{reach:g} may lie beyond the longest that was tested" if reach and f else "or f there is unknown"
            left_out.append(f"left out: {name}: reach {what}")
        if reach and f:
            counted = SavedCounts.read(run.path / "counts.npz")
            tokens = record["consumed_tokens"]
            points.append(Point(arms[name], float(reach), float(f), tokens, counted.f / counted.f[0], is_open))
            if counted.g is not None:
                asked = sum_to_the_end(counted.g) / counted.f[0]
                demanded.append(points[-1]._replace(f=tokens * float(asked[int(reach)]), per_token=asked))
                methods.append({key: value for key, value in run.settings.items() if key.startswith("evidence.")})
                if demanded[-1].f == 0:
                    left_out.append(f"left out of the law of demand: {name}: nothing asks for its reach, {reach:g}")
    if len(sizes) > 1 or all(point.open for point in points):
        rule = f"{'; '.join(left_out) or 'models of several sizes'}; name runs of one size with a reach"
        raise ConfigError(f"RUNS: no law for models of {sorted(sizes)} parameters ({rule})")
    if len(demanded) < len(points) or any(method != methods[0] for method in methods):
        left_out.append("no law of demand: some runs have not counted it, or count evidence by other settings")
        demanded = []
    elif not any(point.fits for point in demanded):
        demanded = []
    method = {key.partition(".")[2]: value for key, value in methods[0].items()} if demanded else {}
    return Evidence(f"{len(runs)} runs", sizes.pop(), points, left_out, demanded, method)


def demand_per_token(shards: Path, window: int, mode: Mode, evidence: Mapping[str, Any]) -> FloatArray:
    """Count the demand from each distance on, by the token, in the first segments that a run would draw.

    `evidence` are the settings of the method. Tokens see all that precedes them in their segment.

    Shapes: (window,).
    Raises: DataError.
    """
    method = EVIDENCE_METHODS[evidence["method"]](**evidence)
    store = TokenStore.open(shards, "train")
    segments = index_segments(store, mode, window)
    sizes: dict[str, Any] = {"pack_tokens": SEGMENTS * window, "look_ahead": SEGMENTS}
    counts = PositionCounts(window)
    for pack in PackStream(PackSettings(store=store, segments=segments, seed=0, evidence=method, **sizes)):
        assert pack.distances is not None, "the settings name a method"
        found = by_distance(pack.distances[pack.targets != IGNORE])
        counts.add_segments(pack.lengths)
        counts.add_evidence(found, found)
        if counts.tokens >= min(READ, store.n_tokens):
            break
    return sum_to_the_end(counts.demand) / counts.tokens
