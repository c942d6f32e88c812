"""A plan for the shape of f: what is drawn or weighed, and the profile that this reaches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.errors import ConfigError
from lab.shape.config import ShapeConfig
from lab.shape.profiles import FloatArray, IntArray, total_variation

TOLERANCE = 0.05  # largest accepted total variation between the aim and the plan


@dataclass(frozen=True, eq=False)
class Plan:
    """Draws of each layout of ids in a cycle, or loss weights, and the profile they reach.

    `pairs_per_token` counts the pairs of tokens at distance 1 or more, `natural_pairs_per_token` those of the corpus's
    documents cut every T tokens: attention's work. `weights`, where targets are weighed and nothing is drawn, holds the
    loss weight of a target by its visible context, the profiles are those of the supervised f, and pairs are counted by
    target.

    Shapes: `draws` int64 (layouts,); `natural`, `aimed` and `reached` profiles (bins,), `edges` (bins + 1,);
        `weights` (window,).
    """

    draws: IntArray
    natural: FloatArray
    aimed: FloatArray
    reached: FloatArray
    edges: IntArray
    pairs_per_token: float
    natural_pairs_per_token: float
    weights: FloatArray | None = None

    @property
    def distance(self) -> float:
        """Total variation between the aim and the profile reached."""
        return total_variation(self.aimed, self.reached)

    def within_reach(self, config: ShapeConfig) -> Plan:
        """Return the plan itself, unless it is too far from the target.

        Raises: ConfigError.
        """
        if self.distance > TOLERANCE:
            raise ConfigError(
                f"shape.target.method={config.target.method}: {config.strategy.method} comes within a total variation "
                f"of {self.distance:.3f}, more than {TOLERANCE:g}; use a power with an exponent nearer to 1"
            )
        return self


NO_DRAWS = np.zeros(0, dtype=np.int64)
