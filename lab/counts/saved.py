"""Counts in a file, f at one position of either type of counts, and profiles of f and g by bins of distances."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from lab.core.errors import CheckpointError
from lab.core.types import FloatArray, IntArray, Row
from lab.counts.position_counts import PositionCounts

OF_KIND = "f_"  # begins the name of the f of a type of layer in a file
MOST_BYTES = 2**31  # that a file unpacks to: of the longest window
F, G = "f(i), pairs at i", "g(d), targets that ask for d"  # in pictures


@dataclass(frozen=True, eq=False)
class SavedCounts:
    """The contents of a counts.npz, or of a file in counts/ of a run folder.

    Shapes: `lengths`, segments of each length, int64 (max_len + 1,); `f` int64 (max_len,); `g` and `g_unweighted`, the
        demand with and without loss weights (max_len,), None in records from before it was counted; `targets` is
        the sum of all loss weights; `kinds` is the f of each type of layer, empty where all are full; `g_by_ids` is
        the demand by distance in ids, None where these have no gaps.
    """

    lengths: IntArray
    f: IntArray
    tokens: int
    g: IntArray | FloatArray | None = None
    g_unweighted: IntArray | None = None
    targets: float = 0
    kinds: Mapping[str, IntArray] = field(default_factory=dict)
    g_by_ids: IntArray | FloatArray | None = None

    @classmethod
    def read(cls, path: Path) -> SavedCounts:
        """Read a file.

        Raises: CheckpointError.
        """
        try:
            with path.open("rb") as opened, np.load(opened) as file:
                # Checked before an array is read: a damaged or foreign file could fill the memory.
                size = sum(part.file_size for part in file.zip.infolist())
                if size > MOST_BYTES:
                    raise ValueError(f"unpacks to {size:,} bytes")
                kinds = {name.removeprefix(OF_KIND): file[name] for name in file if name.startswith(OF_KIND)}
                return cls(
                    lengths=file["lengths"],
                    f=file["f"],
                    tokens=int(file["tokens"]),
                    g=file.get("g"),
                    g_unweighted=file.get("g_unweighted"),
                    targets=file["supervised_f"][0].item() if "supervised_f" in file else 0,
                    kinds=kinds,
                    g_by_ids=file.get("g_by_ids"),
                )
        except (OSError, ValueError, TypeError, KeyError, EOFError, MemoryError, zipfile.BadZipFile) as error:
            reason = str(error).strip("'\"") or type(error).__name__
            raise CheckpointError(f"{path}: cannot be read ({reason}); restore it") from error

    def frequency(self) -> IntArray:
        return self.f

    def g_from(self, distance: int) -> float | None:
        """Return the demand from a distance on, in ids where these have gaps; None if not counted, or beyond."""
        g = self.g if self.g_by_ids is None else self.g_by_ids
        if g is None or not 0 <= distance < len(g):
            return None
        return g[distance:].sum().item()

    def profiles(self) -> dict[str, IntArray | FloatArray]:
        """Return f, and g where it was counted, by their names in pictures."""
        profiles: dict[str, IntArray | FloatArray] = {F: self.f}
        if self.g is not None:
            profiles[G] = self.g
        return profiles


Counted = PositionCounts | SavedCounts


def f_at(counts: Counted | None, i: int) -> int | None:
    """Return f(i); None without a counter, or if `i` is beyond what it counts."""
    if counts is None:
        return None
    f = counts.frequency()
    return int(f[i]) if 0 <= i < len(f) else None


def bin_edges(max_len: int, parts: int) -> list[int]:
    """Cut the distances 1 .. max_len - 1 into bins, `parts` to an octave if there are enough distances.

    Example:
        >>> bin_edges(13, 2)
        [1, 2, 3, 4, 6, 8, 12, 13]
    """
    edges = {max_len}
    for octave in range(max_len.bit_length()):
        for k in range(parts):
            edges.add(min((parts + k) * 2**octave // parts, max_len))
    return sorted(edges)


def per_distance(profiles: Mapping[str, np.ndarray]) -> list[Row]:
    """List the mean of each profile over bins of distances; a mean of 0, which no logarithm shows, is None: a gap.

    Example:
        >>> [row["per distance"] for row in per_distance({"g": np.array([0, 4, 0, 8])})]
        [4.0, None, 8.0]
    """
    rows = []
    for name, values in profiles.items():
        for begin, end in pairwise(bin_edges(len(values), 8)):
            mean = float(values[begin:end].sum() / (end - begin))
            rows.append({"profile": name, "distance": (begin + end - 1) / 2, "per distance": mean or None})
    return rows
