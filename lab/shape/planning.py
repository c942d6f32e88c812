"""Plans: how often each component is drawn so that the pairs approximate a profile.

A strategy offers components c: kinds of samples, each of N_c tokens and F_c(b) pairs in bin b. Drawn x_c times, they
have the profile sum of x_c F_c over sum of x_c P_c, where P_c is F_c summed over the bins. The plan minimises the total
variation to the profile t of the aim, a linear program:

    minimise    sum over b of e_b,                      e >= 0, x >= 0
    subject to  sum over c of x_c F_c(b) - t(b) <= e_b  the excess over the profile, equal to the deficit elsewhere
                sum over c of x_c P_c = 1
                x_c <= r_c sum over d of x_d N_d        where component c has a limit r_c, draws a token

Then x is rounded to whole draws of a cycle, by largest remainder, and the profile of the cycle is reported.
The nearest reachable target is that of the greatest strength whose total variation is within the tolerance: the least
total variation is a convex function of the strength, so bisection finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lab.errors import ConfigError
from lab.shape.config import ShapeConfig
from lab.shape.profiles import FloatArray, IntArray, bin_edges, binned, share, target_profile, total_variation

CYCLE = 4096  # draws; rounding to whole draws moves a few times 1 / CYCLE
BISECTIONS = 7  # strength to within 1 / 128
GRID = np.linspace(0, 1, 9)


@dataclass(frozen=True, eq=False)
class Components:
    """The components that a strategy can draw.

    Shapes: `pairs` float64 (components, bins), `tokens` float64 (components,) of one draw; `limits` float64
    (components,), the most draws of each in draws a token of the whole, inf where there is no limit.
    """

    pairs: FloatArray
    tokens: FloatArray
    limits: FloatArray


@dataclass(frozen=True, eq=False)
class Plan:
    """Draws of each component in a cycle, and the profile they reach.

    `pairs_per_token` counts the pairs of tokens at distance 1 or more, `natural_pairs_per_token` those of the corpus's
    documents cut every T tokens: attention's work. `weights`, where targets are weighed and nothing is drawn, holds the
    loss weight of a target by its visible context, the profiles are those of the supervised f, and pairs are counted by
    target.

    Shapes: `draws` int64 (components,); `natural`, `aimed` and `reached` profiles (bins,), `edges` (bins + 1,);
        `weights` (window,).
    """

    draws: IntArray
    natural: FloatArray
    aimed: FloatArray
    reached: FloatArray
    edges: IntArray
    pairs_per_token: float
    natural_pairs_per_token: float
    weights: FloatArray | None = None

    @property
    def distance(self) -> float:
        """Total variation between the aim and the profile reached."""
        return total_variation(self.aimed, self.reached)


def nearest(components: Components, profile: FloatArray) -> FloatArray:
    """Solve the linear program.

    Shapes: (bins,) -> draws (components,), not rounded, with an arbitrary sum.
    """
    from scipy.optimize import linprog  # takes longer to import than a config to check

    n, bins = components.pairs.shape
    scale = 1 / components.pairs.sum()  # keeps coefficients near 1, which the solver's tolerances expect
    pairs, tokens = components.pairs * scale * n, components.tokens * (n / components.tokens.sum())
    bounded = np.flatnonzero(np.isfinite(components.limits))
    limits = components.limits[bounded] * (components.tokens.sum() / n)
    kept = np.zeros((len(bounded), n + bins))
    kept[:, :n] = -limits[:, None] * tokens
    kept[np.arange(len(bounded)), bounded] += 1
    solution = linprog(
        np.append(np.zeros(n), np.ones(bins)),
        A_ub=np.vstack([np.hstack([pairs.T, -np.eye(bins)]), kept]),
        b_ub=np.append(profile, np.zeros(len(bounded))),
        A_eq=np.append(pairs.sum(1), np.zeros(bins))[None],
        b_eq=[1.0],
    )
    assert solution.success, f"drawing everything at its natural rate is always possible: {solution.message}"
    draws: FloatArray = np.maximum(solution.x[:n], 0)
    return draws


def whole_draws(draws: FloatArray, cycle: int) -> IntArray:
    """Round to whole numbers that sum to `cycle`, by largest remainder.

    Example:
        >>> whole_draws(np.array([0.5, 0.3, 0.2]), 4).tolist()
        [2, 1, 1]
    """
    exact = draws / draws.sum() * cycle
    whole: IntArray = np.floor(exact).astype(np.int64)
    most = np.argsort(whole - exact, kind="stable")[: cycle - int(whole.sum())]
    whole[most] += 1
    return whole


def plan_shape(config: ShapeConfig, components: Components, natural: FloatArray, *, cycle: int = CYCLE) -> Plan:
    """Plan the draws of a cycle.

    Shapes: `natural`, f of the corpus's documents cut every T tokens, (T,).
    Raises: ConfigError for a target out of reach, with the nearest one that is within it.
    """
    edges = bin_edges(len(natural))
    base = share(binned(natural, edges))
    target = target_profile(config, natural, edges)

    def plan(strength: float) -> Plan:
        aimed = (1 - strength) * base + strength * target
        draws = whole_draws(nearest(components, aimed), cycle)
        pairs, tokens = draws @ components.pairs, float(draws @ components.tokens)
        return Plan(draws, base, aimed, share(pairs), edges, pairs.sum() / tokens, natural[1:].sum() / natural[0])

    return within_tolerance(config, plan)


def within_tolerance(config: ShapeConfig, plan: Callable[[float], Plan]) -> Plan:
    """Plan at the strength of a config.

    Raises: ConfigError for a target out of reach, with the nearest one that is within it.
    """
    found = plan(config.strength)
    if found.distance > config.tolerance:
        raise ConfigError(f"shape.strength={config.strength:g}: {reach(config, plan, found)}")
    return found


def reach(config: ShapeConfig, plan: Callable[[float], Plan], found: Plan) -> str:
    """Describe how closely an unreachable target can be approximated, and the nearest reachable one."""
    rule = (
        f"{config.strategy.method} comes within a total variation of {found.distance:.3f} of target "
        f"{config.target.method}, more than shape.tolerance={config.tolerance:g}"
    )
    tried = {float(s): plan(float(s)).distance for s in GRID * config.strength}
    good = [s for s, distance in tried.items() if distance <= config.tolerance]
    if not good:
        best = min(tried, key=lambda s: tried[s])
        return f"{rule}, at every strength; the nearest is shape.strength={best:.2f} at {tried[best]:.3f}"
    low, high = max(good), min(s for s in tried if s > max(good))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if plan(middle).distance <= config.tolerance else (low, middle)
    return f"{rule}; the nearest within it is shape.strength={np.floor(low * 100) / 100:g}"
