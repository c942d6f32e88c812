"""Evidence by the generated corpus's own labels: what each word was made to copy.

The generator of lab.data.synthetic knows the origin of every word: a word of filler when it is drawn, a number when it
is stated. A repeated phrase, a quote or an answer copies words. The evidence of a token of such a word is the same
token in the latest earlier word of that origin, in the same section. Equal words that were drawn apart are no evidence
of each other.

These labels judge lab.evidence.repeat and lab.evidence.suffix, which see the tokens alone. They are computed once and
stored beside the shards (lab.data.labels).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lab.evidence.base import Evidence, IntArray


@dataclass(frozen=True, kw_only=True)
class Asked(Evidence):
    """The word that the generated corpus copied."""

    stored: ClassVar[bool] = True
    method: Literal["asked"] = "asked"

    def distances(
        self, tokens: IntArray, targets: IntArray, lengths: Sequence[int], stored: IntArray | None = None
    ) -> IntArray:
        """Keep the distances that lie within their run.

        Example:
            >>> row = np.zeros(5, dtype=np.int64)
            >>> Asked().distances(row, row, [3, 2], stored=np.array([1, 3, 3, 1, 3])).tolist()
            [1, 0, 3, 1, 0]
        """
        assert stored is not None, "read beside the shards"
        visible = np.zeros(len(tokens), dtype=np.int64)
        visible[: sum(lengths)] = np.concatenate([np.arange(1, length + 1) for length in lengths])
        return np.where(stored <= visible, stored, 0)
