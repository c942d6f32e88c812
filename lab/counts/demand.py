"""Demand: how many targets ask for evidence at each distance.

    g(d) = sum of the loss weights of the scored targets whose nearest evidence lies d tokens back

Evidence is defined by a method of lab.evidence, within what attention may see. g(0) is 0: targets without evidence are
the supervised f(0) less the sum of g. Sums are exact and do not depend on their order: a weight other than 0 and 1 is
counted in units of UNIT, to which it is rounded.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
UNIT = 2.0**-20


def by_distance(distances: IntArray, weights: npt.NDArray[np.floating] | None = None) -> IntArray:
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
