"""How often training has seen every relative position: a finished run, or documents of a known shape.

    f(i) = sum over segments s of max(|s| - i, 0)       (arXiv:2410.18745, Eq. 2)

The three shapes are those of Figure 1, L the training length:

    natural       SlimPajama's document lengths (lab/data/synthetic.py has their shape), long ones cut every L
    uniform       every length 1 .. L equally often
    concatenated  windows always full
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from eval.positions.matrix import FloatArray, IntArray, cells
from lab.counts import PositionCounts
from lab.data.config import NATURAL_LOG_STD, NATURAL_MEDIAN, Mode
from lab.errors import CheckpointError
from lab.positions import Distance

DOCUMENTS = 20_000  # quantiles of the natural shape


@dataclass(frozen=True, eq=False)
class Training:
    """The segments that a training has seen, and f.

    Shapes: `lengths`, how many segments have n tokens, int64 (train_len + 1,); `frequency` int64 (train_len,).
    """

    name: str
    lengths: IntArray
    frequency: IntArray

    @property
    def train_len(self) -> int:
        """Training length L in tokens."""
        return len(self.frequency)

    def share_of(self, frequency: FloatArray) -> FloatArray:
        """Divide f by its largest value: f(0), the tokens trained, but under a distance method that adds to others."""
        share: FloatArray = frequency / self.frequency.max()
        return share

    def frequency_at(self, rel_pos: FloatArray) -> FloatArray:
        """Return f at any relative positions: 0 from L on, nan at nan.

        Between whole positions f is interpolated linearly, as Eq. 2 does too.
        """
        known = np.append(self.frequency, 0)
        frequency: FloatArray = np.interp(rel_pos, np.arange(len(known)), known)
        return frequency


def cell_frequencies(training: Training, distance: Distance, q_pos: IntArray, k_pos: IntArray) -> FloatArray:
    """Return how often the relative position of each chosen cell was trained; nan above the diagonal.

    Shapes: (Tq,), (Tk,) -> float64 (Tq, Tk).
    """
    return training.frequency_at(cells(distance, q_pos, k_pos))


def natural_documents(train_len: int) -> FloatArray:
    """Return document lengths of SlimPajama's shape, at even quantiles instead of drawn."""
    quantiles = (np.arange(DOCUMENTS) + 0.5) / DOCUMENTS
    deviates = np.array([NormalDist().inv_cdf(quantile) for quantile in quantiles])
    return np.maximum(1, np.rint(NATURAL_MEDIAN * train_len * np.exp(NATURAL_LOG_STD * deviates)))


def segment_lengths(mode: Mode, train_len: int) -> IntArray:
    """Cut documents of the given shape into segments of at most `train_len` tokens.

    Example:
        >>> segment_lengths("uniform", 4).tolist(), segment_lengths("concatenated", 4).tolist()
        ([1, 2, 3, 4], [4])
    """
    if mode == "uniform":
        return np.arange(1, train_len + 1)
    if mode == "concatenated":
        return np.array([train_len])
    full, rest = np.divmod(natural_documents(train_len).astype(np.int64), train_len)
    return np.append(np.full(full.sum(), train_len), rest[rest > 0])


def shaped_training(mode: Mode, train_len: int) -> Training:
    """Count what documents of the given shape train."""
    counts = PositionCounts(train_len)
    counts.add_segments(segment_lengths(mode, train_len))
    return Training(f"{mode} lengths, L = {train_len:,} tokens", counts.lengths, counts.frequency())


def run_training(run: Path) -> Training:
    """Read what a run has counted.

    Raises: CheckpointError.
    """
    path = run / "counts.npz"
    if not path.exists():
        remedy = "give the folder of a run that has saved a checkpoint"
        raise CheckpointError(f"--counts={run}: holds no counts.npz; {remedy}")
    try:
        with path.open("rb") as opened, np.load(opened) as file:
            lengths, frequency = file["lengths"], file["f"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).strip("'\"") or type(error).__name__
        raise CheckpointError(f"{path}: cannot be read ({reason}); copy it again from the run") from error
    if not frequency.any():
        raise CheckpointError(f"{path}: counts no tokens; give a run that has trained")
    gaps = lengths @ np.arange(len(lengths)) != frequency[0]
    symbol = "T" if gaps else "L"  # ids with gaps reach the target window
    return Training(f"{run.resolve().name}, {symbol} = {len(frequency):,} tokens", lengths, frequency)
