"""Visible context: how many earlier tokens the token that makes a prediction sees.

A token at index c of its run predicts the next one from c earlier tokens and itself, so c is its visible context,
whatever its rotary ids: gaps do not change it. A run with an anchor sees one token more, c + 1.

    lengths   3      2        no anchor           3, anchored by the first     2, by the same
    context   0 1 2  0 1                          (0)   1 2 3                  1 2

With causal segments a token of context c adds one pair at each distance 0 .. c. If every token of them has a target,

    f(i) = sum over c >= i of the targets that see exactly c earlier tokens

For lengths 3 and 2 there are 2, 2 and 1 targets of contexts 0, 1 and 2, and f = 2 + 2 + 1, 2 + 1, 1 = 5, 3, 1. The last
token of a document has no target, so that the supervised f, the sum on the right, stays a little below f. Under masks
and ids of any kind the sum of c + 1 over all tokens is the number of attended pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def visible_context(lengths: Sequence[int], anchors: Sequence[int] | None = None) -> IntArray:
    """Count the earlier tokens that each token of packed runs sees, padding left out.

    `anchors` holds for each run the index in the row of its anchor, -1 for none.

    Shapes: int64 (sum of lengths,).
    Example:
        >>> visible_context([1, 3, 2], (-1, 0, 0)).tolist()
        [0, 1, 2, 3, 1, 2]
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    begins = np.cumsum(sizes) - sizes
    if anchors is not None:
        begins = begins - (np.asarray(anchors) >= 0)
    context: IntArray = np.arange(sizes.sum()) - np.repeat(begins, sizes)
    return context


def targets_by_context(
    lengths: Sequence[int], anchors: Sequence[int] | None, scored: npt.NDArray[np.bool_]
) -> IntArray:
    """Count the targets of packed runs by visible context.

    Shapes: scored (tokens,), padding included -> int64 (longest context of a token + 1,).
    Example:
        >>> targets_by_context([3, 2], None, np.array([True, True, False, True, True, False])).tolist()
        [2, 2, 0]
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    ends, shifts = sizes.cumsum(), 0 if anchors is None else (np.asarray(anchors) >= 0).astype(np.int64)
    unscored = np.flatnonzero(~scored[: ends[-1] if len(ends) else 0])
    runs = ends.searchsorted(unscored, side="right")
    contexts = unscored - (ends - sizes - shifts)[runs]
    longest = int((sizes + shifts).max(initial=0))
    # a run adds one target of each context from its shift on, less those that are not scored
    steps = np.bincount(np.broadcast_to(shifts, sizes.shape), minlength=longest + 1)
    steps -= np.bincount(sizes + shifts, minlength=longest + 1)
    return steps.cumsum()[:-1] - np.bincount(contexts, minlength=longest)
