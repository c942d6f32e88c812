"""The base class of skip methods: a target window and a draw of position ids; and statistics of a sample's ids.

At ids 0 1 2 5 6 10 the pairs are 4.53 apart on average: 1, 2, 5, 6, 10, 1, 4, 5, 9, 3, 4, 8, 1, 5 and 4. The runs
0 1 2, 5 6 and 10 have 2 tokens on average.

Source of the statistics: arXiv:2409.00509, section 6.4 and Figure 3.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lab.core.arrays import IntArray
from lab.core.schema import Length, Method

BoolArray = np.typing.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Skip(Method):
    """The parameters of a skip method, and its draw of ids."""

    target_len: Length
    """Target window T in tokens, which all ids stay below; the paper trains on samples of 30% of it."""

    needs_sentences: ClassVar[bool] = False
    """Whether ids break between sentences only, so that their lengths must be known."""

    @abstractmethod
    def position_ids(
        self, n_tokens: int, sentence_lengths: IntArray | None, generator: np.random.Generator
    ) -> IntArray:
        """Draw rising ids below target_len for a checked sample: int64 (n_sentences,) -> int64 (n_tokens,)."""

    def length_faults(self, n_tokens: int) -> list[str]:
        """List the parameters' faults for a sample of `n_tokens`, as lines that begin with the field."""
        if self.target_len < n_tokens:
            why = "or the ids do not fit below it (the paper trains on samples of 30% of the target window)"
            rule = f"must be >= n_tokens={n_tokens}, {why}"
            return [self.fault("target_len", f"{rule}; raise it or shorten the sample")]
        return []

    def joint_rules(self, run: Any) -> Iterator[str]:
        """Reject ids that cannot skip, contexts that are known before, and sentences of single or ordered documents."""
        if run.data.schedule is not None:
            yield run.fault("skip.method", "does not go with data.schedule.start; leave one of them out")
        if self.target_len <= run.data.window:
            rule = f"must be > data.window={run.data.window}, or there is nothing to skip; raise it"
            yield run.fault("skip.target_len", rule)
        if self.selects:
            if run.data.mode != "concatenated":
                yield run.fault("skip.selection", "needs windows of several documents; set data.mode: concatenated")
            yield from run.order_faults("skip.selection")

    @property
    def selects(self) -> bool:
        """Whether a sample consists of sentences of a longer text."""
        return False


def mean_distance(ids: IntArray) -> float:
    """Compute the mean of q_pos - k_pos over all pairs of a token and an earlier one, in tokens; nan without a pair.

    The step from one token to the next is part of the distance of all pairs that it lies between.

    Shapes: (n_tokens,), strictly increasing.
    Example:
        >>> mean_distance(np.array([0, 1, 3]))
        2.0
    """
    n = len(ids)
    if n < 2:
        return math.nan
    before = np.arange(1, n)  # tokens before each step; n - before are after it
    parted = before * (n - before) / (n * (n - 1) / 2)  # share of the pairs that each step lies between
    return float(np.diff(ids) @ parted)


def run_lengths(ids: IntArray) -> IntArray:
    """Return the lengths in tokens of the runs, the longest stretches of ids that rise by one, in order.

    Shapes: (n_tokens,), strictly increasing -> int64 (n_runs,).
    Example:
        >>> run_lengths(np.array([0, 1, 2, 5, 6, 10]))
        array([3, 2, 1])
    """
    last = np.append(np.diff(ids) > 1, True)
    return np.diff(np.flatnonzero(last), prepend=-1)
