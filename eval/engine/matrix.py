"""The matrix of relative positions that a distance method gives a text, rows queries and columns keys, and its text."""

import numpy as np

from lab.core.types import FloatArray, IntArray
from lab.positions import Distance

WHOLE, EDGE = 40, 6  # tokens of the longest matrix that is printed in full; a longer one keeps EDGE rows at each end


def compute_cells(distance: Distance, q_pos: IntArray, k_pos: IntArray) -> FloatArray:
    """Compute the relative positions of queries and keys, float64 (Tq, Tk); nan above the diagonal or where hidden."""
    # torch takes a second to import, which skip methods and errors do not need.
    import torch

    rel_pos = distance.rel_pos(torch.from_numpy(q_pos), torch.from_numpy(k_pos)).numpy()
    return np.where(k_pos[None, :] <= q_pos[:, None], rel_pos, np.nan)


def list_values(distance: Distance, length: int) -> FloatArray:
    """List the relative positions that the matrix contains, sorted, each once."""
    positions = np.arange(length)
    # The first column and the last row contain them all. A method that depends on the distance alone has every
    # distance in the last row. Self-Extend and Dual Chunk Attention count from the beginning, as the first column does.
    held = compute_cells(distance, positions, positions[:1]), compute_cells(distance, positions[-1:], positions)
    distinct = np.unique(np.append(*held))
    return distinct[~np.isnan(distinct)]


def format_position(value: float) -> str:
    """Write a position with the fewest decimals it needs.

    Example:
        >>> format_position(6.0), format_position(5.5), format_position(1 / 3)
        ('6', '5.5', '0.333')
    """
    return f"{value:.3f}".rstrip("0").rstrip(".")


def format_matrix(distance: Distance, length: int) -> str:
    """Format the matrix, `.` above the diagonal; of a long text the first and last rows and columns."""
    positions = np.arange(length)
    is_long = length > WHOLE
    if is_long:
        positions = np.r_[0:EDGE, length - EDGE : length]
    rows = []
    for cells_of_query in compute_cells(distance, positions, positions):
        row = ["." if np.isnan(cell) else format_position(cell) for cell in cells_of_query]
        if is_long:
            row.insert(EDGE, "...")
        rows.append(row)
    if is_long:
        rows.insert(EDGE, ["..."] * len(row))
    width = np.char.str_len(rows).max()
    lines = []
    for row in rows:
        lines.append(" ".join([word.rjust(width) for word in row]))
    return "\n".join(lines)
