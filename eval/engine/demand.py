"""How many targets of a corpus ask for each distance and more, for each token that is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.engine.lengths import FloatArray
from lab.counts import PositionCounts
from lab.counts.demand import by_distance
from lab.counts.pairs import sum_to_the_end
from lab.data.arrangement import IGNORE
from lab.data.config import Mode
from lab.data.packing import PackSettings, PackStream
from lab.data.segments import index_segments
from lab.data.shards import TokenStore
from lab.evidence.methods import EVIDENCE_METHODS

READ = 3_000_000  # tokens at most
SEGMENTS = 16  # of a pack


def demand_per_token(shards: Path, window: int, mode: Mode, evidence: Mapping[str, Any]) -> FloatArray:
    """Count the demand from each distance on, by the token, in the first segments that a run would draw.

    `evidence` are the settings of the method. Tokens see all that precedes them in their segment.

    Shapes: (window,).
    Raises: DataError.
    """
    method = EVIDENCE_METHODS[evidence["method"]](**evidence)
    store = TokenStore.open(shards, "train")
    segments = index_segments(store, mode, window)
    sizes: dict[str, Any] = {"pack_tokens": SEGMENTS * window, "look_ahead": SEGMENTS}
    counts = PositionCounts(window)
    for pack in PackStream(PackSettings(store=store, segments=segments, seed=0, evidence=method, **sizes)):
        assert pack.distances is not None, "the settings name a method"
        found = by_distance(pack.distances[pack.targets != IGNORE])
        counts.add_segments(pack.lengths)
        counts.add_evidence(found, found)
        if counts.tokens >= min(READ, store.n_tokens):
            break
    return sum_to_the_end(counts.demand) / counts.tokens
