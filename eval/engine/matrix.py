"""The matrix of relative positions that a distance method gives a text, and how often training has seen each of them.

Rows are queries and columns keys, as in arXiv:2410.18745, Figure 5. STRING at 9 tokens, S = 3, W = 0:

    0 . . . . . . . .
    1 0 . . . . . . .
    2 1 0 . . . . . .
    0 2 1 0 . . . . .
    1 0 2 1 0 . . . .
    2 1 0 2 1 0 . . .
    3 2 1 0 2 1 0 . .
    4 3 2 1 0 2 1 0 .
    5 4 3 2 1 0 2 1 0

No function builds the whole matrix of a long text. How often training has seen a relative position is

    f(i) = sum over segments s of max(|s| - i, 0)       (arXiv:2410.18745, Eq. 2)

of a finished run, or of documents in the three shapes of Figure 1, L the training length: natural (SlimPajama's
document lengths, cut every L), uniform (every length 1 .. L equally often) and concatenated (windows always full).
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.counts import PositionCounts
from lab.data.config import Mode
from lab.data.synthetic import NATURAL_LOG_STD, NATURAL_MEDIAN
from lab.errors import CheckpointError
from lab.positions import Distance
from lab.positions.dca import Dca

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

LONGEST = 4_194_304  # tokens of a text; a row of its matrix is held in memory
WHOLE = 40  # tokens of the longest text whose matrix is printed whole; that of a longer one keeps EDGE rows at each end
EDGE = 6
STRETCHES = 4  # of the last row that are printed; of more, the first two and the last
DOCUMENTS = 20_000  # quantiles of the natural shape
DECIMALS = 3  # at most, of a fractional position


def cells(distance: Distance, q_pos: IntArray, k_pos: IntArray) -> FloatArray:
    """Compute the relative positions of the chosen queries and keys; those above the diagonal and hidden ones are nan.

    Shapes: (Tq,), (Tk,) -> float64 (Tq, Tk).
    """
    import torch

    rel_pos = distance.rel_pos(torch.from_numpy(q_pos), torch.from_numpy(k_pos)).numpy()
    causal: FloatArray = np.where(k_pos[None, :] <= q_pos[:, None], rel_pos, np.nan)
    return causal


def evenly(length: int, most: int) -> IntArray:
    """Choose at most `most` of the positions 0 .. length - 1, evenly, both ends among them.

    Example:
        >>> evenly(9, 5).tolist()
        [0, 2, 4, 6, 8]
    """
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(np.int64))


def last_row(distance: Distance, length: int) -> FloatArray:
    """Compute what the last query sees.

    Shapes: float64 (length,).
    """
    positions = np.arange(length)
    return cells(distance, positions[-1:], positions).ravel()


def values(distance: Distance, length: int) -> FloatArray:
    """List the relative positions that the matrix holds, sorted, each once.

    The first column and the last row hold them all: a method that looks at the distance alone has every distance in
    the last row; Self-Extend and Dual Chunk Attention count from the text's beginning, where the first column does.
    """
    positions = np.arange(length)
    first_column = cells(distance, positions, positions[:1])
    found = np.unique(np.append(first_column, last_row(distance, length)))
    return found[~np.isnan(found)]


def number(value: float) -> str:
    """Write a position with the fewest decimals it needs.

    Example:
        >>> number(6.0), number(5.5), number(1 / 3)
        ('6', '5.5', '0.333')
    """
    return f"{value:.{DECIMALS}f}".rstrip("0").rstrip(".")


def matrix_text(distance: Distance, length: int) -> str:
    """Format the matrix, `.` above the diagonal; of a long text the first and last rows and columns."""
    is_whole = length <= WHOLE
    shown = np.arange(length) if is_whole else np.r_[0:EDGE, length - EDGE : length]
    rows = [["." if np.isnan(cell) else number(cell) for cell in row] for row in cells(distance, shown, shown)]
    if not is_whole:
        rows = [[*row[:EDGE], "...", *row[EDGE:]] for row in rows]
        rows.insert(EDGE, ["..."] * len(rows[0]))
    width = max(len(word) for row in rows for word in row)
    return "\n".join(" ".join(word.rjust(width) for word in row) for row in rows)


def stretches_text(row: FloatArray) -> str:
    """Name the stretches of a row that fall by at most one from key to key, from the first key to the last.

    Example:
        >>> stretches_text(np.array([5.0, 4, 3, 2, 1, 0, 2, 1, 0]))
        '5 .. 0, 2 .. 0'
    """
    steps = np.diff(row)
    stretches = np.split(row, np.flatnonzero((steps > 0) | (steps < -1)) + 1)
    ends = [tuple(dict.fromkeys((number(part[0]), number(part[-1])))) for part in stretches]
    words = [" .. ".join(pair) for pair in ends]
    if len(words) > STRETCHES:
        return ", ".join([*words[:2], "...", words[-1]]) + f" ({len(words):,} stretches)"
    return ", ".join(words)


def resolved(config: Any) -> dict[str, Any]:
    """Return a method's parameters with defaults that follow from others; one left out and off is not named.

    Example:
        >>> resolved(Dca(train_len=8))
        {'train_len': 8, 'chunk': 6, 'window': 2}
    """
    parameters = {field.name: getattr(config, field.name) for field in fields(config) if field.name != "method"}
    if isinstance(config, Dca):
        whole = config.parts == "all"
        own = {"window": config.w, "parts": None} if whole else {"parts": config.parts}
        parameters |= {"chunk": config.s, **own}
    return {name: value for name, value in parameters.items() if value is not None}


def figures(distance: Distance, length: int) -> dict[str, Any]:
    """Summarize the matrix in numbers."""
    held = values(distance, length)
    found = {"length": length, "largest": float(held[-1]), "distinct": len(held)}
    return {"metric": "relative_positions", "method": distance.method, "parameters": resolved(distance), **found}


def facts(distance: Distance, length: int) -> str:
    """Summarize the matrix in a few lines."""
    held, row = values(distance, length), last_row(distance, length)
    words = [f"--{name}={json.dumps(value)}" for name, value in resolved(distance).items()]
    lines = {
        "method": " ".join([distance.method, *words]),
        "length": f"{length} tokens",
        "largest relative position": number(held[-1]),
        "distinct": str(len(held)),
        "last row": stretches_text(row[~np.isnan(row)]),
    }
    if distance.scales_logits:
        lines["logits"] = "scaled, which moves no position"
    return facts_text(lines)


def facts_text(lines: dict[str, str]) -> str:
    """Format names and their values in two columns."""
    return "\n".join(f"{name:<27}{text}" for name, text in lines.items())


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
    quantiles = (np.arange(DOCUMENTS) + 0.5) / DOCUMENTS  # even ones, in place of draws
    deviates = np.array([NormalDist().inv_cdf(quantile) for quantile in quantiles])
    documents = np.maximum(1, np.rint(NATURAL_MEDIAN * train_len * np.exp(NATURAL_LOG_STD * deviates)))
    full, rest = np.divmod(documents.astype(np.int64), train_len)
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
