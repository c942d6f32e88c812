"""The base class of a measure of one's own, which a plugin defines and every probe of a run takes; no torch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from lab.schema import Method, OneOf
from lab.skip.base import IntArray


@dataclass(frozen=True, kw_only=True)
class OwnMeasure(Method):
    """The settings of a measure, and what it measures."""

    @abstractmethod
    def figures(self, model: Any, documents: Sequence[IntArray]) -> dict[str, float]:
        """Measure the model on the first held-out documents; one process does so while the others wait.

        `model` is a lab.probe.measuring.ModelInTraining.

        Shapes: each document int64 (tokens,).
        """

    def record(self, model: Any, documents: Sequence[IntArray]) -> dict[str, float | None]:
        """Name the figures as records do, METHOD.FIGURE; one that is not finite becomes null."""
        found = self.figures(model, documents)
        return {f"{self.method}.{name}": float(x) if math.isfinite(x) else None for name, x in found.items()}


OWN_MEASURES: dict[str, type[OwnMeasure]] = {}
AnyMeasure = Annotated[OwnMeasure, OneOf(OwnMeasure, OWN_MEASURES)]
