"""How long a corpus's documents are, and the position frequency that a window and a mode make of them."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from lab.core.errors import DataError
from lab.core.types import FloatArray, IntArray
from lab.counts.rows import sum_to_the_end
from lab.data import config, shards, synthetic

SLIMPAJAMA = "slimpajama"
LONGEST = 2**20  # tokens; longer documents of that shape count as this long


class LengthHistogram(NamedTuple):
    """Document lengths in tokens, distinct, (n,), and the documents of each, (n,)."""

    name: str
    lengths: IntArray
    counts: FloatArray

    def frequency(self, window: int, mode: config.Mode) -> FloatArray:
        """Return f(i) / f(0), how often relative position i is seen for each token that is trained on.

        Shapes: (window,).
        Source: arXiv:2410.18745, Eq. 2, with the three modes of its Figure 1.
        """
        segments = cut_counts(self.lengths, window, self.counts)
        if mode != "natural":
            segments = np.zeros(window + 1)
            segments[1 if mode == "uniform" else window :] = 1
        f = length_frequency(segments)
        return f / f[0]


def cut_counts(lengths: IntArray, window: int, documents: FloatArray) -> FloatArray:
    """Count the segments of each length, from documents of these lengths that are cut every `window` tokens.

    Shapes: (n,), number of documents of each length (n,) -> float64 (window + 1,).
    Example:
        >>> cut_counts(np.array([2, 5]), 4, np.ones(2)).tolist()
        [0.0, 1.0, 1.0, 0.0, 1.0]
    """
    counts = np.bincount(lengths % window, documents, window + 1).astype(np.float64)
    # A document has lengths // window full segments, and a remainder of 0 tokens is no segment.
    counts[[0, window]] = 0, lengths // window @ documents
    return counts


def length_frequency(counts: FloatArray) -> FloatArray:
    """Compute f of segments by length: f(i) = sum over n of counts(n) max(n - i, 0).

    Shapes: counts (L + 1,), the number of segments of n tokens -> float64 (L,).
    Example:
        >>> length_frequency(np.array([0.0, 1.0, 0.0, 2.0])).tolist()
        [7.0, 4.0, 2.0]
    """
    longer = sum_to_the_end(counts)[1:]  # segments of more than i tokens
    return sum_to_the_end(longer)


def read_lengths(corpus: str) -> LengthHistogram:
    """Read a corpus's histogram: slimpajama, or a folder of token shards.

    Raises: DataError.
    """
    if corpus == SLIMPAJAMA:
        # The length at which arXiv:2410.18745, Figure 1a, shows the shape.
        return natural_lengths(2048)
    path = Path(corpus)
    if not path.is_dir():
        raise DataError(f"--corpus={path}: must be slimpajama or a folder of token shards; correct it")
    lengths = np.concatenate([np.diff(shard.ends, prepend=0) for shard in shards.TokenStore.open(path, "train").shards])
    distinct, counts = np.unique(lengths, return_counts=True)
    return LengthHistogram(path.name, distinct.astype(np.int64), counts.astype(np.float64))


def natural_lengths(window: int) -> LengthHistogram:
    """Return the length distribution that the paper reports for SlimPajama, scaled to a window; a shape, no corpus."""
    # The cumulative distribution at every whole length; differences are the shares of lengths.
    edges = np.arange(1, LONGEST + 1)
    # Bin k is the probability of lengths k to k + 1; `append` adds all longer documents to the last bin.
    counts = np.diff(ndtr(np.log(edges / (synthetic.NATURAL_MEDIAN * window)) / synthetic.NATURAL_LOG_STD), append=1.0)
    return LengthHistogram("SlimPajama's shape (log-normal)", edges, counts)
