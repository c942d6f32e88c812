"""Demand: how many targets ask for evidence at each distance.

    g(d) = sum of the loss weights of the scored targets whose nearest evidence lies d tokens back

Evidence is defined by a method of lab.evidence, within what attention may see. g(0) is 0: targets without evidence are
the supervised f(0) less the sum of g. Sums are exact and do not depend on their order: a weight other than 0 and 1 is
counted in units of UNIT, to which it is rounded.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

IntArray = np.typing.NDArray[np.int64]
UNIT = 2.0**-20
F, G = "f(i), pairs at i", "g(d), targets that ask for d"  # in pictures
BINS = 8  # an octave of a picture


def by_distance(distances: IntArray, weights: np.typing.NDArray[np.floating] | None = None) -> IntArray:
    """Count targets by evidence distance, or add up their weights in units of UNIT; without evidence they are left out.

    Shapes: (targets,), (targets,) -> int64 (longest distance + 1,).
    Example:
        >>> by_distance(np.array([0, 2, 2])).tolist(), by_distance(np.array([1]), np.array([0.5])).tolist()
        ([0, 0, 2], [0, 524288])
    """
    units = None if weights is None else np.rint(weights.astype(np.float64) / UNIT)
    counts: IntArray = np.bincount(distances, units, minlength=1).astype(np.int64)
    counts[0] = 0
    return counts


def edges_of(max_len: int, parts: int) -> list[int]:
    """Cut the distances 1 .. max_len - 1 into bins, `parts` to an octave where there are so many distances.

    Example:
        >>> edges_of(13, 2)
        [1, 2, 3, 4, 6, 8, 12, 13]
    """
    edges = {(parts + k) * 2**octave // parts for octave in range(max_len.bit_length()) for k in range(parts)}
    return [*sorted(edge for edge in edges if edge < max_len), max_len]


def per_distance(profiles: Mapping[str, np.typing.NDArray[Any]]) -> list[dict[str, Any]]:
    """List the mean of each profile over bins of distances; a mean of 0, which no logarithm shows, is None: a gap.

    Example:
        >>> [row["per distance"] for row in per_distance({"g": np.array([0, 4, 0, 8])})]
        [4.0, None, 8.0]
    """
    rows = []
    for name, values in profiles.items():
        edges = np.array(edges_of(len(values), BINS))
        means = np.add.reduceat(values, edges[:-1]) / np.diff(edges) if len(values) > 1 else ()
        middles = (edges[:-1] + edges[1:] - 1) / 2
        found = zip(middles.tolist(), map(float, means))
        rows += [{"profile": name, "distance": at, "per distance": mean or None} for at, mean in found]
    return rows
