"""Settings of eval.impact: the text, the share of targets marked, and the types selected; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from lab.schema import PathText, Positive, Section, Seed, Tests

PositiveShare = Annotated[float, Gt(0), Le(1)]


@dataclass(frozen=True, kw_only=True)
class ImpactConfig(Section):
    """Options of the analysis (arXiv:2409.00509, section 4.1)."""

    windows: Tests = 50
    """Windows that both models score."""
    length: Annotated[int, Ge(2)] | None = None
    """Tokens of a window, the target length; left out, the training window of TUNED."""
    top: PositiveShare = 0.2
    """Share of the targets at each position that is marked: those whose logit changes most."""
    by: Literal["token", "class", "pos"] = "token"
    """Types: tokens, classes of tokens (eval/engine/token_classes.py), or parts of speech (need --tagger)."""
    coverage: PositiveShare = 0.5
    """Share of all marked targets that the selected types cover, the most impactful types first."""
    min_count: Positive = 10
    """Occurrences that a type needs to be selected."""
    tagger: PathText | None = None
    """spaCy pipeline that labels parts of speech: the name of an installed one, or its folder."""
    text: PathText | None = None
    """Source of the windows, a .txt, .json or .jsonl file; left out, held-out documents of the corpus TUNED was trained
    on, one after the other."""
    seed: Seed = 0
    """Seed of the choice of windows."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """What to compute on; auto takes a GPU where there is one."""

    def rules(self) -> list[str]:
        """Refuse a tagger that would be ignored, or a missing one."""
        if self.by == "pos" and self.tagger is None:
            return ["by=pos: needs tagger, a spaCy pipeline such as en_core_web_sm; name it, or use class"]
        if self.by != "pos" and self.tagger is not None:
            return [f"tagger={self.tagger}: would be ignored, by={self.by}; set by=pos or leave it out"]
        return []
