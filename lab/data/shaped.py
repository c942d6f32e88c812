"""Loss weights by visible context as planned.

Weights need a corpus's targets by visible context, every segment drawn once. A document begins s tokens into a window
of T; in mode natural s is 0. It is cut into a first piece of at most T - s tokens, full ones of T, and what remains.
Under mask document, and in mode natural, every piece is a run; under a causal mask every joined window is one. A run
of n tokens has one target of each context 0 .. n - 1, and the last token of a document has none.
"""

from dataclasses import asdict
from typing import Any

import numpy as np

from lab.data.config import DataConfig, Mode
from lab.data.segments import IntArray, index_segments
from lab.data.shards import TokenStore
from lab.errors import ConfigError
from lab.masks import Causal, WindowMask
from lab.shape import ByContext, Plan, cut_counts, plan_weights

FIELD = "weights.by=context"
DIGITS = 6  # of the weights on record, which two machines compute alike


def plan_for(config: ByContext, data: DataConfig, store: TokenStore, mask: WindowMask = Causal()) -> Plan:
    """Plan how the targets of a corpus are weighed.

    Raises: ConfigError for an unreachable target.
    """
    return plan_weights(config, target_counts(store, data.mode, data.window, mask.method))


def target_counts(store: TokenStore, mode: Mode, window: int, mask: str) -> IntArray:
    """Count the targets of all segments by visible context, in mode natural or concatenated.

    Shapes: int64 (window,).
    Raises: ConfigError where some tokens are not scored, or there are no targets.
    """
    if not store.scores_all:
        raise ConfigError(f"{FIELD}: needs a corpus all of which is scored; leave data.tags and conversations out")
    joined = mode == "concatenated"
    stop = index_segments(store, mode, window).n * window if joined else store.n_tokens  # of what is drawn
    whole = joined and mask == "causal"  # a window is one run
    runs, unscored = np.zeros(window + 1), np.zeros(window)
    for begin, shard in zip(store.starts, store.shards, strict=False):
        bounds = begin + np.append(0, shard.ends)
        lengths = np.diff(np.minimum(bounds, stop))
        first = np.minimum(lengths, -bounds[:-1] % window * joined)  # tokens in a window that has begun
        runs += np.bincount(first, minlength=window + 1) + cut_counts(lengths - first, window)
        last = bounds[1:] if whole else np.where(lengths > first, lengths - first, first)
        unscored += np.bincount((last[(bounds[1:] <= stop) & (lengths > 0)] - 1) % window, minlength=window)
    if whole:
        runs = np.bincount([window], [stop // window], window + 1).astype(np.float64)
    counts: IntArray = (np.cumsum(runs[:0:-1])[::-1] - unscored).astype(np.int64)
    if not counts.any():
        raise ConfigError(f"{FIELD}: the corpus has no targets; use documents of two tokens or more")
    return counts


def plan_record(config: ByContext, plan: Plan) -> dict[str, Any]:
    """Return the contents of plan.json: a plan with the weights of the first context of each bin."""
    return {
        "settings": asdict(config),
        "total_variation": plan.distance,
        "pairs_per_token": plan.pairs_per_token,
        "weights": plan.weights[plan.edges[:-1]].round(DIGITS).tolist(),
        "edges": plan.edges.tolist(),
        **{name: getattr(plan, name).tolist() for name in ("natural", "aimed", "reached")},
    }


def summary_of_plan(config: ByContext, plan: Plan) -> str:
    """Describe the plan in one line."""
    return (
        f"weights for {config.target.method}, total variation {plan.distance:.3f}; "
        f"loss weights {plan.weights.min():.2f} to {plan.weights.max():.2f}, pairs a token {plan.pairs_per_token:,.0f}"
    )
