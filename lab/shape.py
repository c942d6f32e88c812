"""Loss weights by visible context, which aim the supervised f at a profile; no torch.

A profile is the distribution of the distances between pairs of tokens, by bins:

    p(b) = sum over distances i in bin b of f(i)  /  sum over all i >= 1 of f(i)

f(0) is left out: it is the number of tokens. The natural profile is that of a corpus's documents cut every T tokens.
The distance between two profiles is their total variation: the share of the pairs that would have to move,

    TV(p, q) = 1/2 sum over bins of |p(b) - q(b)|

Targets, f the natural position frequency (arXiv:2410.18745, Eq. 2), i = 1 .. T - 1:

    power   f(i)^exponent
    exact   f(i) with EXACT's weights

Weights take the supervised f for f: its targets are counted in place of its tokens.

EXACT puts targets into buckets by the logarithm of their visible context, [2^b, 2^(b+1)). Long are the buckets that
begin at LONG_FRAC T or beyond; with q_b the share of the long targets in bucket b, a target in it weighs

    w_b = 1 + EXTRA r_b / sum over long a of q_a r_a,     r_b = q_b^-exponent

and all others 1, so that the mean extra weight of the long targets is EXTRA. With 4 targets of context 4 .. 7 and 1
of context 8 .. 15, both long, q is 4/5 and 1/5, r at exponent 1/2 is twice as much for the second as for the first, and
so is the extra weight: 5/6 and 5/3 of EXTRA.

Source: arXiv:2605.10544, by summaries of its rule and defaults. It counts the target's place in its document, c + 1,
and adds a constant to q that keeps empty buckets finite; here they are left out. With c, a window of a power of two
tokens ends with its last bucket.

With n_c targets of context c and weights w_c, the supervised f is f(i) = sum over c >= i of n_c w_c, so that an aim g
is met by

    n_c w_c = g(c) - g(c + 1),     g(T) = 0, g scaled to g(0) = N = sum of n_c: the mean weight is 1

wherever g does not rise; before that it is replaced by the nearest non-increasing function, in least squares. For
n = 2 2 1 and g = 5 4 3 the weights are 1/2, 1/2 and 3: f = 5 4 3 in place of 5 3 1.

Weights are at most W, so that f can fall by no more than W n_c at c. With F(i) = sum over c >= i of n_c, the largest
such function below g, and then the smallest that still begins at N, are

    below(i) = min over j >= i of g(j) + W (F(i) - F(j)),     reached(i) = max(below(i), N - W (N - F(i)))

Short of W nothing changes. The total variation between the aim and what is reached is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from pydantic import Field

from lab.counts.rows import FloatArray, IntArray, sum_to_the_end
from lab.errors import ConfigError
from lab.schema import Section

Exponent = Annotated[float, Ge(0), Le(16)]


@dataclass(frozen=True, kw_only=True)
class Power(Section):
    """A power of the natural profile: exponent 1 is the natural one, less raises long distances, 0 is flat."""

    method: Literal["power"] = "power"
    exponent: Exponent = 0.5
    """Power of the natural f; above 1 the left skew is stronger."""


@dataclass(frozen=True, kw_only=True)
class Exact(Section):
    """The natural profile with an extra weight on targets of long visible context: EXACT, arXiv:2605.10544."""

    method: Literal["exact"] = "exact"
    exponent: Exponent = 0.5
    """Power of the inverse frequency by which buckets of long targets share the extra weight; 0 is evenly."""


Target = Annotated[Power | Exact, Field(discriminator="method")]


@dataclass(frozen=True, kw_only=True)
class ByContext(Section):
    """A loss weight of every target by the earlier tokens it sees, so that the supervised f has a profile."""

    by: Literal["context"] = "context"
    target: Target = field(default_factory=Power)
    """The target profile of the supervised f."""

    def joint_rules(self, run: Any) -> Iterator[str]:
        """Refuse blocks that grow, and uniform cuts, whose contexts are not known before."""
        if run.data.schedule is not None:
            yield run.fault("weights.by", "does not go with data.schedule.start; leave one of them out")
        if run.data.mode == "uniform":
            yield run.fault("data.mode", "weights.by=context counts no uniform cuts; set another")


BINS = 64
EXTRA, LONG_FRAC = 0.15, 0.25  # EXACT's own
TOLERANCE = 0.05  # largest accepted total variation between the aim and the plan
MAX_WEIGHT = 8.0  # of a target; the mean is 1


def bin_edges(window: int) -> IntArray:
    """Cut the distances 1 .. window - 1 into at most BINS bins: edge b is the first distance of bin b.

    Example:
        >>> bin_edges(5).tolist()
        [1, 2, 3, 4, 5]
    """
    return np.unique(np.linspace(1, window, min(BINS, window - 1) + 1).round().astype(np.int64))


def cut_counts(lengths: IntArray, window: int, documents: FloatArray | None = None) -> FloatArray:
    """Count the segments of each length, documents of these lengths, or so many of each, cut every `window` tokens.

    Shapes: (n,), (n,) -> float64 (window + 1,).
    Example:
        >>> cut_counts(np.array([2, 5]), 4).tolist()
        [0.0, 1.0, 1.0, 0.0, 1.0]
    """
    documents = np.ones(len(lengths)) if documents is None else documents
    counts = np.bincount(lengths % window, documents, window + 1).astype(np.float64)
    counts[[0, window]] = 0, lengths // window @ documents
    return counts


def length_frequency(counts: IntArray | FloatArray) -> FloatArray:
    """Compute f of segments by length: f(i) = sum over n of counts(n) max(n - i, 0).

    Shapes: counts (L + 1,), how many segments have n tokens -> float64 (L,).
    Example:
        >>> length_frequency(np.array([0, 1, 0, 2])).tolist()
        [7.0, 4.0, 2.0]
    """
    longer = sum_to_the_end(counts.astype(np.float64))[1:]  # segments of more than i tokens
    return sum_to_the_end(longer)


def profile_of(frequency: FloatArray, edges: IntArray) -> FloatArray:
    """Return the share of the pairs in each bin: f (window,), edges (bins + 1,) -> (bins,)."""
    pairs: FloatArray = np.add.reduceat(frequency, edges[:-1])
    return pairs / pairs.sum()


def target_frequency(config: ByContext, natural: FloatArray) -> FloatArray:
    """Compute the f of a target, up to a factor, from the natural one: (window,) -> (window,)."""
    if isinstance(config.target, Exact):
        targets = natural - np.append(natural[1:], 0.0)
        return sum_to_the_end(targets * exact_weights(config, targets))
    return (natural / natural[0]) ** config.target.exponent


def exact_weights(config: ByContext, targets: FloatArray) -> FloatArray:
    """Compute EXACT's weight of a target by its visible context.

    Shapes: targets by visible context (window,) -> (window,).
    Raises: ConfigError where no target is long.
    Example:
        >>> targets = np.array([9.0, 0, 0, 0] + [1.0] * 4 + [0.125] * 8)
        >>> exact_weights(ByContext(target=Exact(exponent=0.5)), targets)[[3, 4, 8]].round(6).tolist()
        [1.0, 1.125, 1.25]
    """
    bucket = np.frexp(np.arange(len(targets)))[1]  # 0; 1; 2 for 2 and 3; 3 for 4 .. 7
    long = np.ldexp(1.0, bucket - 1) >= LONG_FRAC * len(targets)
    in_bucket = np.bincount(bucket, targets * long)
    if not in_bucket.any():
        rule = f"no target sees {LONG_FRAC:g} of the window, rounded up to a power of two"
        fault = config.fault("target.method", f"{rule}; use longer documents or a shorter window")
        raise ConfigError(f"weights.{fault}")
    q = in_bucket / in_bucket.sum()
    r = np.power(q, -config.target.exponent, where=q > 0, out=np.zeros_like(q))
    return 1 + EXTRA * (r / (q @ r))[bucket] * long


@dataclass(frozen=True, eq=False)
class Plan:
    """Loss weights of targets by visible context, and the profile of the supervised f that they reach.

    `pairs_per_token` counts the pairs of a target and a token at distance 1 or more: attention's work, which weights
    leave as it is.

    Shapes: `natural`, `aimed` and `reached` profiles (bins,), `edges` (bins + 1,); `weights` (window,).
    """

    natural: FloatArray
    aimed: FloatArray
    reached: FloatArray
    edges: IntArray
    pairs_per_token: float
    weights: FloatArray

    @property
    def distance(self) -> float:
        """Total variation between the aim and the profile reached."""
        return float(np.abs(self.aimed - self.reached).sum() / 2)


def weights_for(aim: FloatArray, targets: IntArray, most: float = MAX_WEIGHT) -> FloatArray:
    """Compute the weights, each in 0 .. most, with mean 1 over the targets.

    Shapes: aim, f(i) up to a factor, and targets by visible context (window,) -> (window,).
    Example:
        >>> weights_for(np.array([5.0, 4, 3]), np.array([2, 2, 1]), 8.0).tolist()
        [0.5, 0.5, 3.0]
        >>> weights_for(np.array([5.0, 4, 3]), np.array([2, 2, 1]), 2.0).tolist()
        [0.5, 1.0, 2.0]
    """
    from scipy.optimize import isotonic_regression  # takes longer to import than a config to check

    falling = isotonic_regression(aim, increasing=False).x
    total = targets.sum()
    aimed = np.append(falling * (total / falling[0]), 0.0)
    most_f = most * np.append(sum_to_the_end(targets), 0.0)  # f if all weights were the largest
    below = most_f + np.minimum.accumulate((aimed - most_f)[::-1])[::-1]
    reached = np.maximum(below, total - (most_f[0] - most_f))
    weights = np.divide(-np.diff(reached), targets, out=np.ones(len(targets)), where=targets > 0)
    return np.clip(weights, 0.0, most) + 0.0  # against rounding, and -0.0


def plan_weights(config: ByContext, targets: IntArray) -> Plan:
    """Plan the weights of targets, counted by visible context (window,), refusing a target profile out of reach."""
    f = sum_to_the_end(targets)
    edges = bin_edges(len(targets))
    goal = target_frequency(config, f)
    natural, aim = f / f[1:].sum(), goal / goal[1:].sum()
    weights = weights_for(aim, targets)
    natural, aimed = (np.add.reduceat(values, edges[:-1]) for values in (natural, aim))
    reached = profile_of(sum_to_the_end(targets * weights), edges)
    plan = Plan(natural, aimed, reached, edges, f[1:].sum() / f[0], weights)
    if plan.distance > TOLERANCE:
        rule = f"the plan comes within a total variation of {plan.distance:.3f}, over {TOLERANCE:g}"
        fault = config.fault("target.method", f"{rule}; use a power with an exponent nearer to 1")
        raise ConfigError(f"weights.{fault}")
    return plan
