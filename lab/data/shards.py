"""Token shards, which preparation writes and training maps into memory.

A shard is a folder, published by one rename:

    manifest.json      format, task, splits, documents, tokens, skips by reason, sources; size and SHA-256 of each file
    checksums.bin      uint32, big-endian, of each block of the files below in the manifest's order: its CRC-32; those
                       of its own blocks are in the manifest, where earlier versions wrote all of them, or none
    SPLIT.tokens.bin   token ids, uint16 or uint32, documents end to end, <eos> included
    SPLIT.ends.bin     int64, where each document ends
    SPLIT.sources.bin  uint32, index of each document's source in the manifest
    SPLIT.scored.bin   uint8, 0 for tokens that are not scored; only if there are such tokens
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lab.data import blocks
from lab.data.blocks import BlockArray, checksums_of, entry_of, write_checksums
from lab.data.groups import Groups
from lab.data.manifests import DTYPES, KINDS, SPLITS, check_shard, is_small, read_manifests
from lab.errors import DataError
from lab.files import publish_folder, write_json
from lab.formats import FORMAT, KEY


def token_dtype(vocab_size: int) -> str:
    """Choose the narrowest type that holds every id."""
    return DTYPES[0] if vocab_size <= 2**16 else DTYPES[1]


class ShardWriter:
    """Collects one task's documents and publishes them as a shard."""

    def __init__(self, temporary: Path, dtype: str, *, marks_scored: bool = False) -> None:
        self.temporary, self.dtype = temporary, dtype
        temporary.mkdir(parents=True)
        names = [f"{split}.scored.bin" for split in SPLITS] if marks_scored else []
        self.marks = {name: (temporary / name).open("wb") for name in names}
        self.files = {split: (temporary / f"{split}.tokens.bin").open("wb") for split in SPLITS}
        self.ends: dict[str, list[int]] = {split: [] for split in SPLITS}
        self.owners: dict[str, list[int]] = {split: [] for split in SPLITS}
        self.sources: dict[str, int] = {}
        self.skips: Counter[str] = Counter()

    def add(
        self, split: str, ids: list[int] | np.ndarray, source: str, scored: list[bool] | np.ndarray | None = None
    ) -> None:
        """Append a document; `scored` marks the tokens that are scored, all of them if left out."""
        if self.marks:
            marks = np.ones(len(ids), np.uint8) if scored is None else np.asarray(scored, dtype=np.uint8)
            self.marks[f"{split}.scored.bin"].write(marks.tobytes())
        self.files[split].write(np.asarray(ids, dtype=self.dtype).tobytes())
        ends = self.ends[split]
        ends.append((ends[-1] if ends else 0) + len(ids))
        self.owners[split].append(self.sources.setdefault(source, len(self.sources)))

    def close(self, final: Path) -> dict[str, Any]:
        """Write the boundaries, sources and manifest, and publish the shard under its name."""
        for file in self.marks.values():
            file.close()
        for split in SPLITS:
            self.files[split].close()
            (self.temporary / f"{split}.ends.bin").write_bytes(np.asarray(self.ends[split], dtype="<i8").tobytes())
            (self.temporary / f"{split}.sources.bin").write_bytes(np.asarray(self.owners[split], "<u4").tobytes())
        files = {path.name: entry_of(path) for path in sorted(self.temporary.iterdir())}
        manifest = {
            KEY: FORMAT,
            "task": final.name,
            "dtype": self.dtype,
            "splits": {
                split: {"documents": len(self.ends[split]), "tokens": self.ends[split][-1] if self.ends[split] else 0}
                for split in SPLITS
            },
            "skips": dict(self.skips),
            "sources": list(self.sources),
            "block_bytes": blocks.BLOCK_BYTES,
            "files": write_checksums(self.temporary, files),
        }
        write_json(self.temporary / "manifest.json", manifest)
        publish_folder(self.temporary, final)
        return manifest


@dataclass(frozen=True, eq=False)
class Shard:
    """One split of one shard, mapped into memory.

    Shapes: `tokens` (tokens,), `scored` uint8 (tokens,) or None where every token is scored, `ends` int64 (documents,),
        `sources` uint32 (documents,).
    """

    folder: Path
    split: str
    tokens: BlockArray
    scored: BlockArray | None
    by_document: dict[str, BlockArray]
    source_names: list[str]
    ends_digest: str

    @cached_property
    def ends(self) -> np.ndarray:
        """Where each document ends; all of it is compared with its checksums when it is first used."""
        return self.by_document["ends"][:]

    @cached_property
    def groups(self) -> Groups:
        """The documents in groups, by which one is found without reading all ends."""
        return Groups(self.folder, self.split, self.by_document["ends"], self.ends_digest)

    @cached_property
    def sources(self) -> np.ndarray:
        """The index of each document's source, compared in the same way."""
        return self.by_document["sources"][:]

    def part(self, document: int) -> slice:
        """Locate a document's tokens."""
        return slice(int(self.ends[document - 1]) if document else 0, int(self.ends[document]))


class TokenStore:
    """All documents of one split, end to end over its shards, read by memory map.

    Units: `token_starts` is where each shard begins, in tokens from the split's beginning.
    """

    def __init__(self, shards: list[Shard]) -> None:
        self.shards = shards
        self.token_starts = np.cumsum([0, *(len(shard.tokens) for shard in shards)])
        self.starts = self.token_starts.tolist()

    @classmethod
    def open(cls, folder: Path, split: str) -> TokenStore:
        """Open the shards of a prepared folder, checked against their manifests.

        Raises: DataError for a broken shard, or where the split is empty.
        """
        manifests = read_manifests(folder)
        if not manifests:
            remedy = "run lab.prepare, copy the shards there, or give a text of your own where the command takes one"
            raise DataError(f"{folder.absolute()}: holds no shards, which this command needs; {remedy}")
        checked = is_small(manifests.values())
        shards = []
        for path, manifest in manifests.items():
            if checked:
                check_shard(path, manifest, hashes=True)
            if manifest["splits"][split]["tokens"]:
                shards.append(open_shard(path, manifest, split, checked=checked))
        if not shards:
            remedy = "use a corpus that contains text" if split == "train" else "raise data.held_out_frac"
            raise DataError(f"{folder}: no {split} documents; {remedy}")
        return cls(shards)

    @property
    def n_tokens(self) -> int:
        """Tokens of the split."""
        return int(self.token_starts[-1])

    def read(self, start: int, length: int) -> np.ndarray:
        """Read `length` tokens from index `start`, across shards; fewer at the end of the split."""
        index = bisect_right(self.starts, start) - 1
        if index < len(self.shards) and start + length <= self.starts[index + 1]:
            offset = start - self.starts[index]
            return self.shards[index].tokens.read(offset, offset + length)
        parts: list[np.ndarray] = []
        while length > 0 and index < len(self.shards):
            offset = start - self.starts[index]
            part = self.shards[index].tokens.read(offset, offset + length)
            parts.append(part)
            start, length, index = start + len(part), length - len(part), index + 1
        return np.concatenate(parts or [np.zeros(0, np.int64)])

    def borders(self, start: int, length: int) -> np.ndarray:
        """Find where documents begin in `length` tokens from index `start`, but for its first token: int64, rising.

        A place is repeated for every document without tokens that ends there.
        """
        last, index, parts = start + length - 1, bisect_right(self.starts, start) - 1, []
        for begin, shard in zip(self.starts[index:-1], self.shards[index:]):
            if begin > last:
                break
            parts.append(shard.groups.ends_within(start - begin, last - begin) + (begin - start))
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.zeros(0, np.int64)])

    def document_numbers(self, start: int, length: int) -> np.ndarray:
        """Number the documents of `length` tokens from index `start`: int64, 0 for the first token's, then 1, 2, ..."""
        return np.bincount(self.borders(start, length), minlength=length).cumsum()

    @cached_property
    def scores_all(self) -> bool:
        """Whether every token is scored when it is predicted."""
        return all(shard.scored is None for shard in self.shards)

    def scored(self, start: int, length: int) -> np.ndarray:
        """Return which of `length` tokens from index `start` are scored when they are predicted: bool (length,)."""
        marks = np.ones(length, dtype=bool)
        first = int(np.searchsorted(self.token_starts, start, side="right")) - 1
        for shift, shard in zip(self.token_starts[first:], self.shards[first:]):
            low, high = max(start, int(shift)), min(start + length, int(shift) + len(shard.tokens))
            if low >= high:
                break
            if shard.scored is not None:
                marks[low - start : high - start] = shard.scored[low - shift : high - shift]
        return marks

    def documents(self) -> Iterable[np.ndarray]:
        """Read the documents one by one, in order."""
        for shard in self.shards:
            for document in range(len(shard.ends)):
                yield shard.tokens[shard.part(document)]


def open_shard(path: Path, manifest: dict[str, Any], split: str, *, checked: bool = False) -> Shard:
    """Map one split of one shard into memory; blocks are compared when read, unless the files have been `checked`."""
    files, size = manifest["files"], blocks.block_bytes_of(manifest)
    checksums = {} if checked else checksums_of(path, manifest)
    found = {
        kind: BlockArray(path / name, dtype, checksums.get(name), size)
        for kind, (_, dtype) in {"tokens": ("tokens", manifest["dtype"]), **KINDS}.items()
        if (name := f"{split}.{kind}.bin") in files
    }
    tokens, scored = found.pop("tokens"), found.pop("scored", None)
    return Shard(path, split, tokens, scored, found, manifest["sources"], files[f"{split}.ends.bin"]["sha256"])
