"""Indices of a shard's documents, one number for each group of GROUP documents, saved beside the shard:

    .groups-SPLIT.npy         where each group ends, in tokens
    .groups-SPLIT-WINDOW.npy  the segments up to and including each group, documents cut every WINDOW tokens

A document is found by its group, whose ends are one or two blocks of the file; a billion documents have 31 MB of
indices, so that opening a corpus reads neither all ends nor anything of what earlier steps have read.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np

from lab.data.blocks import BlockArray
from lab.errors import DiskError
from lab.files import write_atomic

GROUP = 256
CHECKSUM_BYTES = 4


class Groups:
    """The documents of one split of one shard in groups; `digest` is the hash of the file of their ends."""

    def __init__(self, folder: Path, split: str, document_ends: BlockArray, digest: str) -> None:
        self.folder, self.split = folder, split
        self.document_ends, self.digest = document_ends, digest

    @cached_property
    def ends(self) -> np.ndarray:
        """Where each group ends, int64 (groups,)."""
        return self._index("", lambda ends: ends)

    def segments(self, window: int) -> np.ndarray:
        """Count the segments up to and including each group, int64 (groups,)."""
        return self._index(f"-{window}", lambda ends: segment_counts(ends, window))

    def read(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read where groups begin and where each of their documents ends; the last end is repeated in a shorter group.

        Shapes: groups int64 (n,) -> int64 (n,), (n, GROUP).
        """
        firsts, n_documents = groups * GROUP, len(self.document_ends)
        for first in firsts.tolist():
            self.document_ends.check(first, min(first + GROUP, n_documents))
        documents = firsts[:, None] + np.arange(GROUP)
        return self.before(self.ends, groups), self.document_ends.values.take(documents, mode="clip")

    @staticmethod
    def before(running: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Look up a running count at the group before each of `groups`, 0 before the first."""
        found: np.ndarray = running[groups - 1] * (groups > 0)
        return found

    def ends_within(self, start: int, stop: int) -> np.ndarray:
        """Return the ends of documents after token `start`, up to `stop`: int64, rising."""
        first, last = self.ends.searchsorted((start, stop), side="right").tolist()
        ends = self.document_ends.read(first * GROUP, (last + 1) * GROUP)
        low, high = ends.searchsorted((start, stop), side="right").tolist()
        found: np.ndarray = ends[low:high]
        return found

    def _index(self, suffix: str, count: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        def compute() -> np.ndarray:
            counts = count(self.document_ends[:])
            last = np.minimum(np.arange(GROUP, len(counts) + GROUP, GROUP), len(counts)) - 1
            found: np.ndarray = counts[last]
            return found

        return cached(self.folder / f".groups-{self.split}{suffix}.npy", self.digest, compute)


def segment_counts(ends: np.ndarray, window: int, begins: np.ndarray | int = 0) -> np.ndarray:
    """Count the segments up to and including each document: int64, as `ends`, (documents,) or (rows, documents).

    The first document of each row begins at `begins`.
    """
    rounded = ends + (window - 1)
    rounded[..., :1] -= np.asarray(begins)[..., None]
    rounded[..., 1:] -= ends[..., :-1]
    rounded //= window
    counts: np.ndarray = rounded.cumsum(-1)
    return counts


def cached(path: Path, ends_digest: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """Map an array into memory, or compute and save it, so that opening a large corpus again computes nothing.

    A file of another shard, or one that is damaged, is replaced. It is saved completely or not at all; a read-only
    folder is not an error.
    """
    with suppress(OSError, ValueError):
        if is_whole_cache(path, ends_digest):
            saved: np.ndarray = np.load(path, mmap_mode="r").view(np.ndarray)
            return saved
    array, buffer = compute(), io.BytesIO()
    np.save(buffer, array)
    data = buffer.getvalue()
    with suppress(OSError, DiskError):
        write_atomic(path, data + cache_checksum(data, ends_digest))
    return array


def is_whole_cache(path: Path, ends_digest: str) -> bool:
    """Return whether a saved array ends with its checksum, which covers the hash of the documents' ends as well.

    Raises: OSError, or ValueError for an empty file.
    """
    data = np.memmap(path, dtype=np.uint8, mode="r").data
    return bytes(data[-CHECKSUM_BYTES:]) == cache_checksum(data[:-CHECKSUM_BYTES], ends_digest)


def cache_checksum(data: bytes | memoryview, ends_digest: str) -> bytes:
    """Compute the CRC-32 of the hash of a shard's ends and of an array computed from them."""
    return zlib.crc32(data, zlib.crc32(ends_digest.encode())).to_bytes(CHECKSUM_BYTES, "little")
