"""The number of a corpus's targets by visible context, every segment drawn once.

A document that begins s tokens into a window of T (in mode natural s is 0) is cut into a first piece of at most T - s
tokens, full ones of T, and what remains. Under mask document, and in mode natural, every piece is a run; under a causal
mask every joined window is one. A run of n tokens has one of each context 0 .. n - 1, and the last token of a document
has no target.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lab.data.config import Mode
from lab.data.shards import TokenStore
from lab.errors import ConfigError

IntArray = npt.NDArray[np.int64]
FIELD = "shape.strategy.method=weights"


def target_counts(store: TokenStore, mode: Mode, window: int, mask: str) -> IntArray:
    """Count the targets of all segments by visible context, in mode natural or concatenated.

    Shapes: int64 (window,).
    Raises: ConfigError where some tokens are not scored, or there are no targets.
    """
    if not store.scores_all:
        raise ConfigError(f"{FIELD}: needs a corpus all of which is scored; leave data.tags and conversations out")
    joined = mode == "concatenated"
    stop = store.n_tokens // window * window if joined else store.n_tokens  # of what is drawn
    runs, unscored = np.zeros(window + 1, dtype=np.int64), np.zeros(window, dtype=np.int64)
    for begin, shard in zip(store.token_starts, store.shards, strict=False):
        bounds = int(begin) + np.concatenate([[0], shard.ends])
        starts, ends = np.minimum(bounds[:-1], stop), np.minimum(bounds[1:], stop)
        first = np.minimum(ends - starts, window - starts % window) if joined else np.minimum(ends - starts, window)
        full, rest = np.divmod(ends - starts - first, window)
        runs += np.bincount(first, minlength=window + 1) + np.bincount(rest, minlength=window + 1)
        runs[window] += full.sum()
        last = np.where(rest > 0, rest, np.where(full > 0, window, first)) - 1
        context = (ends - 1) % window if joined and mask == "causal" else last
        unscored += np.bincount(context[(bounds[1:] <= stop) & (ends > starts)], minlength=window)
    if joined and mask == "causal":
        runs = np.bincount([window], [stop // window], window + 1).astype(np.int64)
    counts: IntArray = np.cumsum(runs[:0:-1])[::-1] - unscored
    if not counts.any():
        raise ConfigError(f"{FIELD}: the corpus has no targets; use documents of two tokens or more")
    return counts
