"""Loss weights by evidence: targets whose evidence is at other distances than those to keep have no loss.

`keep` lists intervals of evidence distances, both ends included: tokens, or ids where these have gaps. A target with
evidence outside them is *outside*; one without evidence never is. Of the outside targets of a pack, each is chosen with
the probability `fraction`. Which targets lose their loss depends on `control`. A control masks the loss of the
same number of targets, or of all if a pack has fewer:

    none     those chosen
    near     random ones whose evidence is nearer than that of any outside distance
    random   random ones of all scored targets, wherever their evidence is, or without any

    keep [[0, 2]]   distances 0 2 3 1 0 3    none: the 2 at distance 3; near: 2 of the 2 at distances 1 and 2

The choice depends on the seed and on the pack alone, so a run and its control read the same packs in the same order.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Gt, Le

from lab.core.schema import Section
from lab.core.types import IntArray

Flags = np.typing.NDArray[np.bool_]


class ByEvidence(Section):
    """Which targets have a loss, by the distance of their evidence."""

    by: Literal["evidence"] = "evidence"
    """What decides which targets have a loss."""
    keep: tuple[tuple[int, int], ...]
    """Intervals of evidence distances whose targets keep their loss, both ends included."""
    distance: Literal["tokens", "ids"] = "tokens"
    """Unit of the distances: tokens, or position ids, which have gaps."""
    fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of the targets outside that lose their loss."""
    control: Literal["none", "near", "random"] = "none"
    """Targets that lose it: those outside, the same number of random nearer ones, or the same number of all."""

    def rules(self) -> Iterator[str]:
        """Require rising intervals without overlap, from 0 or more on."""
        lows, highs = np.array(self.keep or [(0, -1)]).T
        if lows[0] < 0 or (lows > highs).any():
            yield self.format_error(
                "keep", "must be intervals [low, high] with 0 <= low <= high; for instance [[0, 96]]"
            )
        elif (lows[1:] <= highs[:-1]).any():
            yield self.format_error("keep", "must be intervals that rise and do not overlap; join or sort them")
        elif self.control == "near" and highs[0] < 1:
            yield self.format_error("control", "needs nearer targets; raise the end of the first interval of keep")

    def joint_rules(self, run: Any) -> Iterator[str]:
        """Reject intervals that exclude nothing, and distances in ids without gaps."""
        farthest = run.reach if self.distance == "ids" else run.data.window
        if self.keep[-1][1] >= farthest - 1 and len(self.keep) == 1:
            yield run.format_error("weights.keep", f"must leave out distances below {farthest}; lower its end")
        if self.distance == "ids" and run.skip is None:
            yield run.format_error("weights.distance", "needs ids with gaps; set skip.method, or use tokens")

    def outside(self, distances: IntArray) -> Flags:
        """Find the distances outside the intervals; 0, no evidence, is never outside."""
        outside = distances != 0
        for low, high in self.keep:
            outside &= (distances < low) | (distances > high)
        return outside

    def dropped(self, distances: IntArray, scored: Flags, generator: np.random.Generator) -> Flags:
        """Choose the targets of a pack that lose their loss.

        Shapes: evidence distances int64 (tokens,), scored (tokens,) -> (tokens,).
        """
        out = np.zeros(len(distances), dtype=np.bool_)
        indices = np.flatnonzero(scored & self.outside(distances))
        if self.fraction < 1:
            indices = indices[generator.random(len(indices)) < self.fraction]
        low, high = self.keep[0]
        # A distance of 0 is no evidence, even if the first interval begins there.
        nearer = scored & (distances >= max(low, 1)) & (distances <= high)
        if self.control == "near":
            eligible = np.flatnonzero(nearer)
        elif self.control == "random":
            eligible = np.flatnonzero(scored)
        if self.control != "none":
            indices = generator.choice(eligible, min(len(indices), len(eligible)), replace=False)
        out[indices] = True
        return out
