"""Checksums of a file's blocks: written with the file, compared when a run reads a block for the first time.

CRC-32 finds every error of up to 32 bits in a row, and all but one of 2^32 others. Blocks are small, as windows are
drawn from all over a corpus and a window costs the blocks that it touches. The checksums of a shard's files are a file
beside them, itself in blocks, whose checksums are in the manifest: a run reads those of the blocks that it reads.
"""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.errors import DataError
from lab.files import FileEntry

BLOCK_BYTES = 2**13
FIRST_BLOCK_BYTES = 2**16  # of earlier versions, whose manifests hold the checksums of all blocks
READ_BLOCKS = 8  # hashed at a time
CHECKSUMS, SUM_DTYPE, SUM_BYTES = "checksums.bin", ">u4", 4
DIGITS = 2 * SUM_BYTES  # hexadecimal, of one block


def entry_of(path: Path) -> FileEntry:
    """Return the size, the hash and the blocks' checksums of a file for a manifest."""
    digest, sums, size = hashlib.sha256(), bytearray(), 0
    with path.open("rb") as file:
        while data := memoryview(file.read(READ_BLOCKS * BLOCK_BYTES)):
            digest.update(data)
            for begin in range(0, len(data), BLOCK_BYTES):
                sums += zlib.crc32(data[begin : begin + BLOCK_BYTES]).to_bytes(SUM_BYTES, "big")
            size += len(data)
    return {"bytes": size, "sha256": digest.hexdigest(), "crc32": sums.hex()}


def write_checksums(folder: Path, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
    """Move the checksums from the entries of a manifest to a file, and return the entries with that of this file."""
    sums = bytes.fromhex("".join(entry.pop("crc32") for entry in files.values()))
    (folder / CHECKSUMS).write_bytes(sums)
    return {**files, CHECKSUMS: entry_of(folder / CHECKSUMS)}


def count_blocks(n_bytes: int, block_bytes: int) -> int:
    """Count the blocks of a file."""
    return -(-n_bytes // block_bytes)


def block_bytes_of(manifest: dict[str, Any]) -> int:
    """Return the size of a block, which earlier versions did not record."""
    size: int = manifest.get("block_bytes", FIRST_BLOCK_BYTES)
    return size


def lists_blocks(manifest: dict[str, Any]) -> bool:
    """Return whether a manifest's checksums, if there are any, are as many as there are blocks."""
    files, size = manifest["files"], block_bytes_of(manifest)
    if not isinstance(size, int) or size < 1:
        return False
    for entry in files.values():
        sums = entry.get("crc32")
        if not (sums is None or (isinstance(sums, str) and len(sums) == DIGITS * count_blocks(entry["bytes"], size))):
            return False
    others = sum(count_blocks(entry["bytes"], size) for name, entry in files.items() if name != CHECKSUMS)
    return CHECKSUMS not in files or files[CHECKSUMS]["bytes"] == SUM_BYTES * others


def has_checksums(manifest: dict[str, Any]) -> bool:
    """Return whether the blocks of all files have checksums; those of earlier versions may have none."""
    files = manifest["files"]
    return "crc32" in files.get(CHECKSUMS, {}) or all("crc32" in entry for entry in files.values())


def checksums_of(folder: Path, manifest: dict[str, Any]) -> dict[str, tuple[np.ndarray | BlockArray, int]]:
    """Find the checksums of a shard's files: where they are, and at which index those of each file begin."""
    files, size = manifest["files"], block_bytes_of(manifest)
    inline = {name: np.frombuffer(bytes.fromhex(e["crc32"]), SUM_DTYPE) for name, e in files.items() if "crc32" in e}
    if CHECKSUMS not in inline:
        return {name: (sums, 0) for name, sums in inline.items()}
    sums, first = BlockArray(folder / CHECKSUMS, SUM_DTYPE, (inline[CHECKSUMS], 0), size), 0
    found: dict[str, tuple[np.ndarray | BlockArray, int]] = {}
    for name, entry in files.items():
        found[name] = (sums, first)
        first += count_blocks(entry["bytes"], size)
    return found


class BlockArray:
    """An array in a file, mapped into memory; without checksums its blocks are not compared.

    `checksums` are those of many files, with the index of this file's first.

    Shapes: as many values as the file holds.
    """

    def __init__(
        self, path: Path, dtype: str, checksums: tuple[np.ndarray | BlockArray, int] | None, block_bytes: int
    ) -> None:
        self.path, self.checksums, self.block_bytes = path, checksums, block_bytes
        self.data: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
        self.bytes = self.data.data
        self.values: np.ndarray = self.data.view(dtype)
        self.itemsize = self.values.itemsize
        self.n_blocks = 0 if checksums is None else count_blocks(len(self.data), block_bytes)
        self.compared = bytearray(count_blocks(self.n_blocks, 8))  # one bit for each block

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
        self.check(start, stop)
        return self.values[start:stop]

    def check(self, start: int, stop: int) -> None:
        """Compare the blocks of values from `start` to before `stop` that have not been compared yet.

        Raises: DataError as `read` does.
        """
        if not self.n_blocks or start >= stop:
            return
        first = start * self.itemsize // self.block_bytes
        end = min((stop * self.itemsize - 1) // self.block_bytes + 1, self.n_blocks)
        compared = int.from_bytes(self.compared[first >> 3 : (end + 7) >> 3], "little") >> (first & 7)
        if ~compared & (1 << (end - first)) - 1:
            self.compare(first, end)

    def compare(self, first: int, end: int) -> None:
        """Compare blocks from `first` to before `end` with their checksums.

        Raises: DataError.
        """
        size, compared = self.block_bytes, self.compared
        for block, expected in enumerate(self.checksums_of(first, end), start=first):
            if compared[block >> 3] >> (block & 7) & 1:
                continue
            data = self.bytes[block * size : (block + 1) * size]
            if (found := zlib.crc32(data)) != expected:
                raise DataError(
                    f"{self.path}: bytes {block * size:,} to {block * size + len(data) - 1:,} have CRC-32 {found:08x}, "
                    f"{expected:08x} is recorded; restore the file, or delete {self.path.parent} and run lab.prepare "
                    "again"
                )
            compared[block >> 3] |= 1 << (block & 7)

    def checksums_of(self, first: int, end: int) -> list[int]:
        """Return the recorded checksums of blocks from `first` to before `end`."""
        assert self.checksums is not None, "has some"
        sums, shift = self.checksums
        part = slice(shift + first, shift + end)
        found: list[int] = (sums.read(part.start, part.stop) if isinstance(sums, BlockArray) else sums[part]).tolist()
        return found
