"""Position skips: ids with gaps, with which a short sample covers the distances of a long one.

A sample's ids are sampled by one of three methods.

PoSE: the sample is two chunks of contiguous ids, the second of them shifted by one skip.

    p(i) = i        for i < a
           i + u    for i >= a       0 <= i < n, ids in tokens

a, the length of the first chunk, is uniform in 1 .. (n + 1) // 2. The skip u is uniform in 0 .. T - n, both ends
included: the last id, n - 1 + u, then takes every value from n - 1 to T - 1. A sample of one token has no second
chunk, and its id is 0. At n = 6 and T = 12, with a = 2 and u = 5 of 0 .. 6:

    tokens    0 1           2 3  4  5
    ids       0 1 . . . . . 7 8  9 10 .

Source: arXiv:2409.00509, section 5.1, which cites PoSE (arXiv 2309.10400); the two ranges are those of PoSE's own
code, src/train_pose.py. That code also takes the second chunk's text from a later part of a longer document; here the
caller provides the tokens. The PoSE baseline in LongRecipe's code differs: ids break at an index uniform in
0 .. T - n instead of at a, which is beyond the sample and leaves no skip in 57% of samples (24,000 in 80,000).
LongRecipe's mean pair distance is about 2x that of this baseline, as the paper reports, and 1.5 times that of PoSE
as here.

RPES (randomized positional encoding): the ids are a sorted random sample of those of the target window.

    p(0) < p(1) < ... < p(n - 1)      n of the T ids 0 .. T - 1 without replacement, ids in tokens

Every set of n ids is equally likely, C(T, n) of them; the first id need not be 0. At n = 6 and T = 12:

    tokens    0   1 2     3   4   5
    ids     . 1 . 3 4 . . 7 . 9 . 11

A run is a longest stretch of ids that rise by one. The id after a token's is taken with probability (n - 1) / T, the
last one included, so that there are n (1 - (n - 1) / T) runs on average, and the mean run length is

    T / (T - n + 1) = 1 / (1 - (n - 1) / T)       close to 1 / (1 - n / T): 1.43 tokens where n is 30% of T

Source: arXiv:2409.00509, section 5.1, which cites Ruoss et al. (2023). LongRecipe's code does the same.

LongRecipe's position index transformation: ids break between sentences only, and skip at random there.

    p = pos(k) + j       for token j of sentence k, ids in tokens, 0 <= j < |s_k|
    pos(0) = 0,     pos(k) = pos(k - 1) + |s_(k-1)| + g_k,     g_k >= 0,     sum of g_k <= T - n

n tokens in N sentences leave T - n ids free. N of T - n + N slots are chosen in increasing order, the first of them
slot 0; the k-th sentence goes into the k-th slot, a slot without a sentence is one free id, and the slots are
flattened:

    pos(k) = slot(k) + sum over j < k of (|s_j| - 1)

The last id is at most T - 1, and each of the C(T - n + N - 1, N - 1) placements is equally likely: every g_k is
(T - n) / N in the mean. At n = 6, N = 3 and T = 12, with slots 0, 3 and 7 of 9:

    slots     abc   . . de  . . . f  .
    ids       0 1 2 . . 5 6 . . . 10 .

Source: arXiv:2409.00509, section 4.2 and Algorithm 1. Eq. 6 has a + 1 that would skip an id even where g = 0,
contrary to the text above it. Algorithm 1 has T slots, which overflow T as soon as a sentence has two tokens. Here M,
its largest g, is what the window leaves. In the released code
- N slots are sampled from all, and the smallest is replaced by 0, which biases the others towards the window's end;
- token index 0 is treated as an empty slot; its id is restored just before the second id, which joins a first sentence
  of one token to the second sentence;
- a first stretch, as long as a first chunk of PoSE, is overwritten with ids 0, 1, ... .
None of the three is done here.

At ids 0 1 2 5 6 10 the pairs are 4.53 apart on average: 1, 2, 5, 6, 10, 1, 4, 5, 9, 3, 4, 8, 1, 5 and 4. The runs
0 1 2, 5 6 and 10 have 2 tokens on average.

Source of the statistics: arXiv:2409.00509, section 6.4 and Figure 3.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from lab.core.errors import ConfigError, look_up
from lab.core.schema import Length, Method, OneOf
from lab.core.types import IntArray

BoolArray = np.typing.NDArray[np.bool_]


class Skip(Method):
    """The parameters of a skip method, which samples ids."""

    target_len: Length
    """Target window T in tokens, which all ids stay below; the paper trains on samples of 30% of it."""

    needs_sentences: ClassVar[bool] = False
    """Whether ids break between sentences only, so that their lengths must be known."""

    @abstractmethod
    def position_ids(self, n_tokens: int, sentence_lengths: IntArray, generator: np.random.Generator) -> IntArray:
        """Sample rising ids below target_len for a checked sample: int64 (n_sentences,) -> int64 (n_tokens,)."""

    def length_errors(self, n_tokens: int) -> list[str]:
        """List the parameters' errors for a sample of `n_tokens`, as lines that begin with the field."""
        if 0 < n_tokens <= self.target_len:
            return []
        rule = f"must be >= n_tokens={n_tokens} >= 1, or the ids do not fit below it; raise it or shorten the sample"
        return [self.format_error("target_len", rule)]

    def joint_rules(self, run: Any) -> Iterator[str]:
        """Reject ids that cannot skip, and sentences of single documents."""
        if self.target_len <= run.data.window:
            rule = f"must be > data.window={run.data.window}, or there is nothing to skip; raise it"
            yield run.format_error("skip.target_len", rule)
        if self.selects and run.data.mode != "concatenated":
            yield run.format_error("skip.selection", "needs windows of several documents; set data.mode: concatenated")

    @property
    def selects(self) -> bool:
        """Whether a sample consists of sentences of a longer text."""
        return getattr(self, "selection", None) is not None


def mean_distance(ids: IntArray) -> float:
    """Compute the mean of q_pos - k_pos over all pairs of a token and an earlier one, in tokens; nan without a pair.

    The step from one token to the next is part of the distance of all pairs that it is between.

    Shapes: (n_tokens,), strictly increasing.
    Example:
        >>> mean_distance(np.array([0, 1, 3]))
        2.0
    """
    n = len(ids)
    if n < 2:
        return math.nan
    before = np.arange(1, n)  # tokens before each step; n - before are after it
    # Each step is between this share of the pairs.
    return float(np.diff(ids) @ (before * (n - before) / (n * (n - 1) / 2)))


def run_lengths(ids: IntArray) -> IntArray:
    """Return the lengths in tokens of the runs, the longest stretches of ids that rise by one, in order.

    Shapes: (n_tokens,), strictly increasing -> int64 (n_runs,).
    Example:
        >>> run_lengths(np.array([0, 1, 2, 5, 6, 10]))
        array([3, 2, 1])
    """
    return np.diff(np.flatnonzero(np.diff(ids, append=ids[-1:] + 2) > 1), prepend=-1)


class Pose(Skip):
    """PoSE's parameters."""

    method: Literal["pose"] = "pose"

    def position_ids(self, n_tokens: int, sentence_lengths: IntArray, generator: np.random.Generator) -> IntArray:
        """Shift the second chunk by a random skip: int64 (n_tokens,)."""
        # The order of the two samples is part of the data order: it must not change.
        first = generator.integers(1, (n_tokens + 1) // 2, endpoint=True)
        skip = generator.integers(0, self.target_len - n_tokens, endpoint=True)
        ids = np.arange(n_tokens, dtype=np.int64)
        ids[first:] += skip
        return ids


class Rpes(Skip):
    """The parameters of the randomized positional encoding scheme."""

    method: Literal["rpes"] = "rpes"

    def position_ids(self, n_tokens: int, sentence_lengths: IntArray, generator: np.random.Generator) -> IntArray:
        """Choose ids at random and sort them: int64 (n_tokens,)."""
        # Sorted below, so that a shuffle would only cost time.
        return np.sort(generator.choice(self.target_len, n_tokens, replace=False, shuffle=False).astype(np.int64))


class LongRecipe(Skip):
    """The parameters of the position index transformation, and of the selection of sentences before it."""

    needs_sentences: ClassVar[bool] = True
    method: Literal["longrecipe"] = "longrecipe"
    selection: str | None = None
    """Result of probe-lab impact: samples are data.window tokens of the sentences of target_len tokens that
    contain one of its token types; random takes any sentences. Default: samples are whole windows of the text."""

    @property
    def by_types(self) -> bool:
        return self.selection not in (None, "random")

    def position_ids(self, n_tokens: int, sentence_lengths: IntArray, generator: np.random.Generator) -> IntArray:
        """Choose the slots of the sentences and flatten them: sentence_lengths int64 (N,) -> int64 (n_tokens,)."""
        others = len(sentence_lengths) - 1
        # The first sentence is in slot 0, so that the others are in slots from 1 on.
        chosen = generator.choice(self.target_len - n_tokens + others, others, replace=False, shuffle=False)
        slots = np.append(0, np.sort(chosen) + 1)
        # As each free slot is one id, this many are skipped before each sentence.
        return np.arange(n_tokens, dtype=np.int64) + np.repeat(slots - np.arange(len(slots)), sentence_lengths)


SKIP_METHODS: dict[str, type[Skip]] = {"pose": Pose, "rpes": Rpes, "longrecipe": LongRecipe}

SkipConfig = Annotated[Any, OneOf(Skip, SKIP_METHODS)]


def skip_positions(
    method: str | Skip,
    n_tokens: int,
    *,
    target_len: int | None = None,
    sentence_lengths: Sequence[int] | IntArray | None = None,
    generator: np.random.Generator,
) -> IntArray:
    """Sample position ids for a sample: strictly increasing in 0 .. target_len - 1.

    `method` is a name, which needs `target_len`, or a config section, which has its own. `sentence_lengths`, the tokens
    of each sentence, is for "longrecipe" alone; other methods ignore it.

    Shapes: int64 (n_tokens,).
    Raises: ConfigError.
    """
    config = method
    if not isinstance(config, Skip):
        config = look_up(SKIP_METHODS, config, "skip.method")(target_len=target_len)  # type: ignore[arg-type]
    if errors := config.length_errors(n_tokens):
        raise ConfigError(*errors)
    lengths = np.array(sentence_lengths if sentence_lengths is not None else [], dtype=np.int64)
    if config.needs_sentences and (lengths.sum() != n_tokens or lengths.min() < 1):
        raise ConfigError(
            f"sentence_lengths: must be whole numbers >= 1 that sum to n_tokens={n_tokens}, as every token is in one "
            "sentence; see lab.data.selecting.split_sentences"
        )
    return config.position_ids(n_tokens, lengths, generator)
