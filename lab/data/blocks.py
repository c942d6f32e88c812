"""Checksums of a file's blocks: written with the file, compared when a run reads a block for the first time.

CRC-32 finds every error of up to 32 bits in a row, and all but one of 2^32 others. Blocks are small, as windows are
drawn from all over a corpus and a window costs the blocks that it touches.
"""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

import numpy as np

from lab.errors import DataError
from lab.files import FileEntry

BLOCK_BYTES = 2**16
DIGITS = 8  # hexadecimal, of one block


def entry_of(path: Path) -> FileEntry:
    """Return the size, the hash and the blocks' checksums of a file for a manifest."""
    digest, blocks, size = hashlib.sha256(), [], 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            blocks.append(f"{zlib.crc32(block):08x}")
            size += len(block)
    return {"bytes": size, "sha256": digest.hexdigest(), "crc32": "".join(blocks)}


def lists_blocks(entry: FileEntry) -> bool:
    """Return whether an entry holds a checksum of each block of its file, or none, as those of earlier versions."""
    checksums = entry.get("crc32")
    n_blocks = -(-entry["bytes"] // BLOCK_BYTES)
    return checksums is None or (isinstance(checksums, str) and len(checksums) == DIGITS * n_blocks)


class BlockArray:
    """An array in a file, mapped into memory; without checksums its blocks are not compared.

    Shapes: as many values as the file holds.
    """

    def __init__(self, path: Path, dtype: str, checksums: str | None) -> None:
        self.path = path
        self.data: np.ndarray = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
        self.values: np.ndarray = self.data.view(dtype)
        self.checksums = checksums or ""
        self.unread = bytearray(b"\1" * (len(self.checksums) // DIGITS))
        self.block_values = BLOCK_BYTES // self.values.itemsize

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.values)

    def __getitem__(self, part: slice) -> np.ndarray:
        """Read values, as `read` does."""
        start, stop, _ = part.indices(len(self.values))
        return self.read(start, stop)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read values from `start` to before `stop`, fewer at the end.

        Raises: DataError for a block that is not what was written.
        """
        first, end = start // self.block_values, -(-stop // self.block_values)
        if self.unread.find(1, first, end) >= 0:
            for block in range(first, min(end, len(self.unread))):
                if self.unread[block]:
                    self.compare(block)
        return self.values[start:stop]

    def compare(self, block: int) -> None:
        """Compare one block with its checksum.

        Raises: DataError.
        """
        begin = block * BLOCK_BYTES
        data = self.data[begin : begin + BLOCK_BYTES]
        found, expected = f"{zlib.crc32(data.data):08x}", self.checksums[DIGITS * block :][:DIGITS]
        if found != expected:
            raise DataError(
                f"{self.path}: bytes {begin:,} to {begin + len(data) - 1:,} have CRC-32 {found}, the manifest records "
                f"{expected}; restore the file, or delete {self.path.parent} and run lab.prepare again"
            )
        self.unread[block] = 0
