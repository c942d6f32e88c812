"""EXACT: an extra loss weight for targets of long visible context, shared out by inverse frequency.

Targets are put into buckets by the logarithm of their visible context, [2^b, 2^(b+1)). Long are the buckets that begin
at long_frac T or beyond; with q_b the share of the long targets in bucket b, a target in it weighs

    w_b = 1 + extra r_b / sum over long a of q_a r_a,     r_b = q_b^-exponent

and all others 1, so that the mean extra weight of the long targets is `extra`. With 4 targets of context 4 .. 7 and 1
of context 8 .. 15, both long, q is 4/5 and 1/5, r at exponent 1/2 is twice as much for the second as for the first, and
so is the extra weight: 5/6 and 5/3 of `extra`.

As a target profile it is the supervised f under these weights: strategy weights meets it with them alone, and choose,
pack and skip can aim at the same profile with tokens.

Source: arXiv:2605.10544, by summaries of its rule and defaults. It counts the target's place in its document, c + 1,
and adds a constant to q that keeps empty buckets finite; here they are left out. With c, a window of a power of two
tokens ends with its last bucket.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lab.errors import ConfigError
from lab.shape.config import Exact

FloatArray = npt.NDArray[np.float64]


def exact_weights(config: Exact, targets: FloatArray) -> FloatArray:
    """Compute the weight of a target by its visible context.

    Shapes: targets by visible context (window,) -> (window,).
    Raises: ConfigError where no target is long.
    Example:
        >>> targets = np.array([9.0, 0, 0, 0] + [1.0] * 4 + [0.125] * 8)
        >>> exact_weights(Exact(extra=0.6, long_frac=0.25), targets)[[3, 4, 8]].round(6).tolist()
        [1.0, 1.5, 2.0]
    """
    bucket = np.frexp(np.arange(len(targets)))[1]  # 0; 1; 2 for 2 and 3; 3 for 4 .. 7
    long = np.ldexp(1.0, bucket - 1) >= config.long_frac * len(targets)
    in_bucket = np.bincount(bucket, targets * long)
    if not in_bucket.any():
        raise ConfigError(
            f"shape.target.long_frac={config.long_frac:g}: no target sees that much, rounded up to a power of two; "
            "lower it"
        )
    q = in_bucket / in_bucket.sum()
    r = np.power(q, -config.exponent, where=q > 0, out=np.zeros_like(q))
    weights: FloatArray = 1 + config.extra * (r / (q @ r))[bucket] * long
    return weights


def exact_frequency(config: Exact, natural: FloatArray) -> FloatArray:
    """Compute the supervised f under these weights.

    Shapes: f of which every step counts the targets of one context (window,) -> (window,).
    """
    targets = natural - np.append(natural[1:], 0.0)
    frequency: FloatArray = np.cumsum((targets * exact_weights(config, targets))[::-1])[::-1]
    return frequency
