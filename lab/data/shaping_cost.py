"""The cost of a shaped corpus in a run: text read again, text never read, documents cut, pairs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lab.data.segments import SegmentIndex
from lab.data.shaped import ClassSegments, Shaped
from lab.data.shards import TokenStore
from lab.shape.components import length_classes
from lab.shape.config import ShapeConfig
from lab.shape.planning import Plan

DIGITS = 6  # of the weights on record, which two machines compute alike
MOST_SEGMENTS = 200_000  # segments in which cut documents are counted


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Shares of 0 to 1, and pairs of tokens at distance 1 or more for each token trained."""

    repeated_frac: float
    """Of the tokens trained, those read before in the same run."""
    unread_frac: float
    """Of the corpus's tokens, those never read."""
    cut_frac: float
    """Of the documents, those that a segment's end cuts."""
    pairs_per_token: float
    natural_pairs_per_token: float


def cost_of(shaped: Shaped, store: TokenStore, tokens: int) -> Cost:
    """Compute the cost of a run of `tokens` tokens."""
    plan = shaped.plan
    if isinstance(shaped.segments, ClassSegments):
        counts = shaped.counts
        edges = length_classes(len(counts) - 1)
        segments = np.add.reduceat(counts, edges[:-1]).astype(np.float64)
        each = np.add.reduceat(counts * np.arange(len(counts)), edges[:-1]) / np.maximum(segments, 1)
        drawn = plan.draws * tokens / float(plan.draws @ each)
        again = float(np.maximum(drawn - segments, 0) @ each)
        never = float(np.maximum(segments - drawn, 0) @ each)
    else:
        again, never = float(max(tokens - store.n_tokens, 0)), float(max(store.n_tokens - tokens, 0))
    return Cost(
        repeated_frac=again / tokens,
        unread_frac=never / store.n_tokens,
        cut_frac=cut_share(shaped.segments, store),
        pairs_per_token=plan.pairs_per_token,
        natural_pairs_per_token=plan.natural_pairs_per_token,
    )


def shape_record(shape: ShapeConfig, plan: Plan, cost: Cost) -> dict[str, Any]:
    """Return the contents of shape.json: a plan and its cost; of weights those of the first context of each bin."""
    return {
        "shape": asdict(shape),
        "total_variation": plan.distance,
        "cost": asdict(cost),
        "draws": plan.draws.tolist(),
        "weights": None if plan.weights is None else plan.weights[plan.edges[:-1]].round(DIGITS).tolist(),
        "edges": plan.edges.tolist(),
        **{name: getattr(plan, name).tolist() for name in ("natural", "aimed", "reached")},
    }


def summary_of_shape(shape: ShapeConfig, plan: Plan, cost: Cost) -> str:
    """Describe the plan and its cost in one line."""
    weights = "" if plan.weights is None else f"loss weights {plan.weights.min():.2f} to {plan.weights.max():.2f}, "
    return (
        f"shape: {shape.strategy.method} for {shape.target.method} at strength {shape.strength:g}, total variation "
        f"{plan.distance:.3f}; {weights}tokens read again {cost.repeated_frac:.1%}, never read {cost.unread_frac:.1%}, "
        f"documents cut {cost.cut_frac:.1%}, pairs a token {cost.pairs_per_token:,.0f} "
        f"(natural {cost.natural_pairs_per_token:,.0f})"
    )


def cut_share(segments: SegmentIndex, store: TokenStore) -> float:
    """Compute the share of documents that segments cut, in the corpus's first segments.

    A document is cut where a segment ends inside it.
    """
    some = [segments[index] for index in range(min(segments.n, MOST_SEGMENTS))]
    cuts = np.array([segment.start + segment.length for segment in some])
    ends = document_ends(store, int(cuts.max()))
    owner = np.searchsorted(ends, cuts)
    inside = cuts < ends[owner]
    return len(np.unique(owner[inside])) / (int(owner.max()) + 1)


def document_ends(store: TokenStore, stop: int) -> np.ndarray:
    """List where the documents end that begin before place `stop`: int64, in tokens from the split's beginning."""
    parts = [shard.ends + begin for shard, begin in zip(store.shards, store.token_starts) if begin < stop]
    ends = np.concatenate(parts)
    return ends[: int(np.searchsorted(ends, stop)) + 1]
