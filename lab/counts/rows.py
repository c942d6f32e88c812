"""What packed rows add to the counts: pairs of tokens by distance, targets by visible context, and demand.

Pairs are counted without visiting any: they are the ids' autocorrelation, by a fast Fourier transform. Its terms are
integers far below 2^53, so that rounding is exact.

Visible context is how many earlier tokens the token that makes a prediction sees.

A token at index c of its run predicts the next one from c earlier tokens and itself. So c is its visible context
for any rotary ids: gaps do not change it. A run with an anchor sees one token more, c + 1.

    lengths   3      2        no anchor           3, anchored by the first     2, by the same
    context   0 1 2  0 1                          (0)   1 2 3                  1 2

With causal segments a token of context c adds one pair at each distance 0 .. c. If every token of them has a target,

    f(i) = sum over c >= i of the targets that see exactly c earlier tokens

For lengths 3 and 2 there are 2, 2 and 1 targets of contexts 0, 1 and 2. Their f is 5, 3, 1. The last
token of a document has no target, so that the supervised f, the sum on the right, stays a little below f. Under masks
and ids of any form the sum of c + 1 over all tokens is the number of attended pairs.

Demand is how many targets ask for evidence at each distance:

    g(d) = number of targets that have a loss and whose nearest evidence is d tokens back

Evidence is defined by a method of lab.evidence, within what attention may see. g(0) is 0: targets without evidence are
the supervised f(0) less the sum of g.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import fft

from lab.core.types import IntArray


def sum_to_the_end(values: np.typing.NDArray[Any]) -> np.typing.NDArray[Any]:
    return np.cumsum(values[::-1])[::-1]


def pairs_of_ids(queries: IntArray, keys: IntArray, max_len: int) -> IntArray:
    """Count the pairs at each distance: sum over p of [p is a query's id] [p - i is a key's], exact by rounding.

    Shapes: ids from 0 on, in any order (n_queries,), (n_keys,) -> int64 (max_len,).
    """
    longest = int(max(queries.max(), keys.max()))
    # The transform is circular: at 2x the length, negative distances do not wrap around to positive ones.
    size = fft.next_fast_len(2 * longest + 1, real=True)
    of_queries = fft.rfft(np.bincount(queries, minlength=size).astype(np.float64))
    of_keys = fft.rfft(np.bincount(keys, minlength=size).astype(np.float64))
    out = np.zeros(max_len, dtype=np.int64)
    n = min(max_len, longest + 1)
    out[:n] = np.rint(fft.irfft(of_queries * of_keys.conj(), size)[:n])
    return out


def visible_context(lengths: Sequence[int], anchors: Sequence[int] | None = None) -> IntArray:
    """Count the earlier tokens that each token of packed runs sees, without padding.

    `anchors` has for each run the index in the row of its anchor, -1 for none.

    Shapes: int64 (sum of lengths,).
    Example:
        >>> visible_context([1, 3, 2], (-1, 0, 0)).tolist()
        [0, 1, 2, 3, 1, 2]
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    begins = np.cumsum(sizes) - sizes
    if anchors is not None:
        # A run with an anchor begins one token early, with the anchor itself.
        begins = begins - (np.asarray(anchors) >= 0)
    return np.arange(sizes.sum()) - np.repeat(begins, sizes)


def targets_by_context(
    lengths: Sequence[int], anchors: Sequence[int] | None, scored: np.typing.NDArray[np.bool_]
) -> IntArray:
    """Count the targets of packed runs by visible context.

    Shapes: scored (tokens,), padding included -> int64 (longest context of a token + 1,).
    Example:
        >>> targets_by_context([3, 2], None, np.array([True, True, False, True, True, False])).tolist()
        [2, 2, 0]
    """
    context = visible_context(lengths, anchors)
    return np.bincount(context[scored[: len(context)]], minlength=int(context.max(initial=-1)) + 1)


def count_by_distance(distances: IntArray) -> IntArray:
    """Count targets by evidence distance; those without evidence are omitted.

    Shapes: (targets,) -> int64 (longest distance + 1,).
    Example:
        >>> count_by_distance(np.array([0, 2, 2])).tolist()
        [0, 0, 2]
    """
    counts: IntArray = np.bincount(distances, minlength=1)
    counts[0] = 0
    return counts
