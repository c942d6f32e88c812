"""How long a corpus's documents are, and the position frequency that a window and a mode make of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import ndtr  # scipy.stats takes half a second more to import

from lab.data.config import Mode
from lab.data.shards import TokenStore
from lab.errors import DataError, first_line
from lab.shape.profiles import length_frequency

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
SLIMPAJAMA = "slimpajama"
MEDIAN, LOG_STD = 0.26 * 2048, 1.2  # tokens, nats: the shape of arXiv:2410.18745, Figure 1a, at 2,048
LONGEST = 2**20  # tokens; longer documents of that shape count as this long


@dataclass(frozen=True, eq=False)
class Documents:
    """A histogram of document lengths.

    Shapes: `lengths` (n,) tokens, distinct; `counts` (n,) documents of each.
    """

    name: str
    lengths: IntArray
    counts: FloatArray

    def frequency(self, window: int, mode: Mode) -> FloatArray:
        """Return f(i) / f(0), how often relative position i is seen for each token that is trained on.

        Shapes: (window,).
        Source: arXiv:2410.18745, Eq. 2, with the three modes of its Figure 1.
        Example:
            >>> three = Documents("three", np.array([2, 5]), np.array([1.0, 1.0]))  # segments of 2, and of 4 and 1
            >>> (7 * three.frequency(4, "natural")).round(6).tolist()
            [7.0, 4.0, 2.0, 1.0]
        """
        segments = np.zeros(window + 1)
        if mode == "concatenated":
            segments[window] = 1
        elif mode == "uniform":
            segments[1:] = 1
        else:
            np.add.at(segments, self.lengths % window, self.counts)
            segments[window] += float(self.lengths // window @ self.counts)
            segments[0] = 0
        f = length_frequency(segments)
        per_token: FloatArray = f / f[0]
        return per_token


def read_documents(corpus: str) -> Documents:
    """Read a corpus's histogram: the name of a shape, a folder of token shards, or a CSV file with `length,count`.

    Raises: DataError.
    """
    if corpus == SLIMPAJAMA:
        return slimpajama()
    path = Path(corpus)
    if path.is_dir():
        lengths = np.concatenate([np.diff(shard.ends, prepend=0) for shard in TokenStore.open(path, "train").shards])
        distinct, counts = np.unique(lengths, return_counts=True)
        return Documents(path.name, distinct.astype(np.int64), counts.astype(np.float64))
    return read_histogram(path)


def slimpajama() -> Documents:
    """Return documents with the length distribution that the paper reports for SlimPajama; a shape, not the corpus."""
    edges = np.arange(1, LONGEST + 1)
    counts = np.diff(ndtr(np.log(edges / MEDIAN) / LOG_STD), append=1.0)
    return Documents("SlimPajama's shape (log-normal)", edges, counts)


def read_histogram(path: Path) -> Documents:
    """Read a CSV file with the columns `length` (tokens) and `count` (documents).

    Raises: DataError.
    """
    field = f"--corpus={path}"
    if path.exists() and not path.is_file():
        raise DataError(f"{field}: is no file; give slimpajama, a folder of token shards, or a CSV file")
    try:
        columns = pd.read_csv(path)
        lengths, counts = (columns[name].to_numpy(np.float64) for name in ("length", "count"))
    except (OSError, ValueError, KeyError) as error:
        rule = "must be slimpajama, a folder of token shards, or a CSV file with the columns length,count"
        raise DataError(f"{field}: {rule}; correct it ({first_line(error)})") from error
    if not len(lengths) or not (np.isfinite(counts).all() and (counts >= 0).all() and counts.any()):
        raise DataError(f"{field}: count must be numbers >= 0, some of them more; correct the file")
    if not (np.isfinite(lengths).all() and (lengths >= 1).all() and (lengths == lengths.round()).all()):
        raise DataError(f"{field}: length must be whole numbers of tokens >= 1; correct the file")
    return Documents(path.name, lengths.astype(np.int64), counts)
