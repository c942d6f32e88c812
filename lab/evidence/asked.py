"""Evidence by the generated corpus's own labels: what each word was made to copy.

The generator of lab.data.synthetic knows the origin of every word: a word of filler when it is drawn, a number when it
is stated. A repeated phrase, a quote or an answer copies words. The evidence of a token of such a word is the same
token in the latest earlier word of that origin, in the same section. Equal words that were drawn apart are no evidence
of each other.

These labels judge lab.evidence.repeat and lab.evidence.suffix, which see the tokens alone. They are computed once and
stored beside the shards (lab.data.labels).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lab.evidence.base import Stored


@dataclass(frozen=True, kw_only=True)
class Asked(Stored):
    """The word that the generated corpus copied."""

    method: Literal["asked"] = "asked"
