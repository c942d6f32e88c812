"""Plan which ids with gaps the windows get, so that f approximates a profile.

A window of n tokens is cut into k chunks of contiguous ids, the first g of them in one group and the others in a
second, with v ids free between the chunks of a group and u between the groups:

    k = 4, g = 2     |chunk| v |chunk|    u    |chunk| v |chunk|         n + (k - 2) v + u <= T

u is drawn anew for every sample from a cell of its grid, so that no single distance dominates.

Layout c has F_c(b) pairs in bin b, P_c in all. Drawn x_c times, the layouts have the profile sum of x_c F_c over sum of
x_c P_c. The plan minimises the total variation to the profile t of the aim, a linear program:

    minimise    sum over b of e_b,                      e >= 0, x >= 0
    subject to  sum over c of x_c F_c(b) - t(b) <= e_b  the excess over the profile, equal to the deficit elsewhere
                sum over c of x_c P_c = 1

Then x is rounded to whole draws of a cycle, by largest remainder, and the profile of the cycle is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from lab.counts.pairs import pairs_of_runs
from lab.shape.config import ShapeConfig
from lab.shape.profiles import FloatArray, IntArray, Plan, bin_edges, profile_of, target_frequency

CHUNKS = (1, 2, 4, 8, 16, 32)
LEAST_CHUNK = 4  # tokens
GAPS = 12  # cells of the grid of u, and values of v
PLACES = 4  # values of u in its cell that planning averages over
CYCLE = 4096  # draws; rounding to whole draws moves a few times 1 / CYCLE


@dataclass(frozen=True)
class ChunkLayout:
    """Chunks of a window: how many, how many in the first group, ids free inside groups, and between them at most."""

    chunks: int
    first: int
    inner: int
    between: tuple[int, int]

    def starts(self, n_tokens: int, between: int) -> tuple[IntArray, IntArray]:
        """Compute the chunks' first ids and lengths.

        Example:
            >>> [x.tolist() for x in ChunkLayout(4, 2, 1, (0, 9)).starts(8, 5)]
            [[0, 3, 10, 13], [2, 2, 2, 2]]
        """
        ends = np.arange(self.chunks + 1) * n_tokens // self.chunks
        groups = np.arange(self.chunks) >= self.first
        gaps = np.arange(self.chunks) * self.inner + groups * (between - self.inner)
        return ends[:-1] + gaps, np.diff(ends)

    def ids(self, n_tokens: int, generator: np.random.Generator) -> IntArray:
        """Draw the ids of a sample.

        Shapes: int64 (n_tokens,), strictly increasing from 0.
        """
        starts, lengths = self.starts(n_tokens, int(generator.integers(*self.between)))
        offsets = starts - (np.cumsum(lengths) - lengths)
        return np.arange(n_tokens, dtype=np.int64) + np.repeat(offsets, lengths)

    def mean_pairs(self, n_tokens: int, edges: IntArray) -> FloatArray:
        """Count a window's pairs by bins of distances, averaged over some values of u in its cell.

        Shapes: (bins,).
        """
        low, high = self.between
        places = np.unique((low + (np.arange(PLACES) + 0.5) / PLACES * (high - low)).astype(int))
        window = int(edges[-1])
        pairs = sum(pairs_of_runs(*self.starts(n_tokens, int(u)), window) for u in places)
        return np.add.reduceat(pairs, edges[:-1]) / len(places)


def layouts(n_tokens: int, target_len: int) -> list[ChunkLayout]:
    """List the layouts whose ids stay below the target window."""
    room = target_len - n_tokens
    found = [ChunkLayout(1, 1, 0, (0, 1))]
    for k in (k for k in CHUNKS[1:] if n_tokens // k >= LEAST_CHUNK):
        inner = [0] if k == 2 else np.unique(np.linspace(0, room // (k - 2), GAPS).astype(int)).tolist()
        for first, v in product(sorted({1, k // 2}), inner):
            if first == 1 and k > 2 and v == 0:
                continue  # two contiguous stretches, of which k / 2 has more
            cells = np.unique(np.linspace(0, room - (k - 2) * v + 1, GAPS + 1).astype(int)).tolist()
            found += [ChunkLayout(k, first, v, (low, high)) for low, high in pairwise(cells)]
    return found


def nearest(pairs: FloatArray, profile: FloatArray) -> FloatArray:
    """Solve the linear program.

    Shapes: pairs (layouts, bins), profile (bins,) -> draws (layouts,), not rounded, with an arbitrary sum.
    """
    from scipy.optimize import linprog  # takes longer to import than a config to check

    n, bins = pairs.shape
    scaled = pairs * (1 / pairs.sum()) * n  # coefficients near 1, which the solver's tolerances expect
    solution = linprog(
        np.append(np.zeros(n), np.ones(bins)),
        A_ub=np.hstack([scaled.T, -np.eye(bins)]),
        b_ub=profile,
        A_eq=np.append(scaled.sum(1), np.zeros(bins))[None],
        b_eq=[1.0],
    )
    assert solution.success, f"some draws always sum to 1: {solution.message}"
    return np.maximum(solution.x[:n], 0)


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


def plan_gaps(config: ShapeConfig, n_tokens: int, natural: FloatArray) -> Plan:
    """Plan the draws of a cycle; each sample draws a layout of its ids with the plan's probabilities.

    Shapes: `natural`, f of the corpus's documents cut every T tokens, (T,).
    Raises: ConfigError for a target out of reach.
    """
    edges = bin_edges(len(natural))
    options = layouts(n_tokens, len(natural))
    aimed = profile_of(target_frequency(config, natural), edges)
    offered = np.stack([layout.mean_pairs(n_tokens, edges) for layout in options])
    draws = whole_draws(nearest(offered, aimed), CYCLE)
    pairs = draws @ offered
    per_token, natural_per_token = pairs.sum() / (CYCLE * n_tokens), natural[1:].sum() / natural[0]
    reached = pairs / pairs.sum()
    probabilities = draws / draws.sum()

    def place(tokens: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        layout = options[generator.choice(len(options), p=probabilities)]
        return layout.ids(len(tokens), generator)

    plan = Plan(draws, profile_of(natural, edges), aimed, reached, edges, per_token, natural_per_token, place=place)
    return plan.within_reach(config)
