"""Options of the planner."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from eval.plan.documents import SLIMPAJAMA
from lab.data.config import Mode
from lab.schema import PathText, Positive, PositiveFloat, Section


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Section):
    """Options of the planner."""

    corpus: PathText = SLIMPAJAMA
    """Folder of token shards, CSV file with `length,count`, or slimpajama, the shape that the paper reports."""
    window: tuple[Annotated[int, Ge(8), Le(2**24)], ...] = (2048, 4096)
    """Training windows in tokens, with commas between them."""
    mode: tuple[Mode, ...] = ("natural",)
    """How documents become segments (data.mode), with commas between several."""
    tokens: PositiveFloat = 1e12
    """Tokens to train on."""
    target: Positive | None = None
    """Reach to aim for, in tokens: prints the tokens that each window and mode needs."""
    measure: Literal["reach", "effective_length"] = "reach"
    """What the runs are read for; the paper's points are effective lengths."""
    confidence: Annotated[float, Gt(0), Lt(1)] = 0.95
    """Probability of the prediction intervals."""
    config: PathText | None = None
    """Config of the run that is planned: its rotary base and size are compared with the windows and the law."""

    @property
    def arms(self) -> list[tuple[int, Mode]]:
        """Every window with every mode."""
        return list(product(self.window, self.mode))
