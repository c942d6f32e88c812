"""Token shards, which preparation writes and training maps into memory.

A shard is a folder, published by one rename:

    manifest.json      format, task, splits, documents, tokens, skips by reason, sources; of each file its size, SHA-256
                       and the CRC-32 of each of its blocks, which earlier versions did not write
    SPLIT.tokens.bin   token ids, uint16 or uint32, documents end to end, <eos> included
    SPLIT.ends.bin     int64, where each document ends
    SPLIT.sources.bin  uint32, index of each document's source in the manifest
    SPLIT.scored.bin   uint8, 0 for tokens that are not scored; only if there are such tokens
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lab.data.blocks import BlockArray, entry_of, lists_blocks
from lab.data.closing import PREPARED, check_closed, check_file, differs
from lab.data.groups import Groups
from lab.errors import DataError
from lab.files import entries_of, publish_folder, write_json
from lab.formats import FORMAT, KEY, refuse_unknown

SPLITS, DTYPES = ("train", "held_out"), ("<u2", "<u4")
KINDS = {"ends": ("documents", "<i8"), "sources": ("documents", "<u4"), "scored": ("tokens", "u1")}
VERIFY_BYTES = 2**28  # shards of a smaller total size are hashed when opened, larger ones block by block when read


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
            "files": {path.name: entry_of(path) for path in sorted(self.temporary.iterdir())},
        }
        write_json(self.temporary / "manifest.json", manifest)
        publish_folder(self.temporary, final)
        return manifest


def read_manifest(shard: Path, expected: str | None = None) -> dict[str, Any]:
    """Read a shard's manifest; `expected` is the SHA-256 that prepared.json records of it.

    Raises: DataError, also for a manifest of another shape, of an unknown format or of another shard.
    """
    path = shard / "manifest.json"
    try:
        data = path.read_bytes()
        manifest = json.loads(data.decode("utf-8"))
        if isinstance(manifest, dict):
            refuse_unknown(path, manifest.get(KEY), DataError)
        fault = fault_of(manifest)
    except (OSError, ValueError, RecursionError) as error:
        fault = str(error)
    if fault is not None:
        raise DataError(f"{shard}: its manifest cannot be read ({fault}); {again(shard)}")
    found, task = hashlib.sha256(data).hexdigest(), manifest.get("task", shard.name)
    if task != shard.name:
        raise DataError(f"{path}: is that of {task}, expected {shard.name}; {again(shard)}")
    if expected not in (None, found):
        raise DataError(differs(path, found, PREPARED, str(expected), again(shard)))
    read: dict[str, Any] = manifest
    return read


def again(shard: Path) -> str:
    """Return the remedy for a shard that is not what was written."""
    return f"restore it, or delete {shard} and run lab.prepare again"


def fault_of(manifest: Any) -> str | None:
    """Return why a manifest has another shape, or None."""
    files = entries_of(manifest) if isinstance(manifest, dict) else None
    if files is None or not all(map(lists_blocks, files.values())):
        return "it does not list files of its folder"
    splits, kinds = manifest.get("splits"), {"sources": list, "skips": dict}
    if manifest.get("dtype") not in DTYPES or not isinstance(splits, dict) or splits.keys() != set(SPLITS):
        return "it has no dtype, or other splits"
    sizes = [size.get(unit) for size in splits.values() if isinstance(size, dict) for unit in ("documents", "tokens")]
    if len(sizes) < 2 * len(SPLITS) or not all(isinstance(size, int) for size in sizes):
        return "its splits have no sizes"
    wrong = [name for name, kind in kinds.items() if not isinstance(manifest.get(name), kind)]
    if wrong:
        return f"it has no {wrong[0]}"
    return next(filter(None, (fault_of_size(manifest, split) for split in SPLITS)), None)


def fault_of_size(manifest: dict[str, Any], split: str) -> str | None:
    """Return which file of a split has another size than its documents or tokens, of their type, need, or None."""
    for kind, (unit, dtype) in {"tokens": ("tokens", manifest["dtype"]), **KINDS}.items():
        name, n = f"{split}.{kind}.bin", manifest["splits"][split][unit]
        size = manifest["files"].get(name, {}).get("bytes")
        if size != n * np.dtype(dtype).itemsize and not (kind == "scored" and size is None):
            return f"{name} has {size} bytes, which is not {n} {unit} of {np.dtype(dtype)}"
    return None


def read_manifests(folder: Path) -> dict[Path, dict[str, Any]]:
    """Read the manifests of a folder's shards in order, and compare them with prepared.json and with the files' sizes.

    Raises: DataError naming the first file that differs.
    """
    manifests = {path: read_manifest(path, expected) for path, expected in check_closed(folder).items()}
    for path, manifest in manifests.items():
        check_shard(path, manifest, hashes=False)
    return manifests


def check_shard(shard: Path, manifest: dict[str, Any], hashes: bool) -> None:
    """Compare a shard's files with its manifest: sizes, and hashes if asked.

    Raises: DataError naming the file.
    """
    for name, expected in manifest["files"].items():
        check_file(shard / name, expected, "its manifest", again(shard), hashes=hashes)


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

    @classmethod
    def open(cls, folder: Path, split: str) -> TokenStore:
        """Open the shards of a prepared folder, checked against their manifests.

        Raises: DataError for a broken shard, or where the split is empty.
        """
        manifests = read_manifests(folder)
        if not manifests:
            remedy = "run lab.prepare, copy the shards there, or give a text of your own where the command takes one"
            raise DataError(f"{folder.absolute()}: holds no shards, which this command needs; {remedy}")
        is_small = sum(file["bytes"] for m in manifests.values() for file in m["files"].values()) <= VERIFY_BYTES
        shards = []
        for path, manifest in manifests.items():
            if is_small:
                check_shard(path, manifest, hashes=True)
            if manifest["splits"][split]["tokens"]:
                shards.append(open_shard(path, manifest, split, checked=is_small))
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
        parts = []
        index = int(np.searchsorted(self.token_starts, start, side="right")) - 1
        while length > 0 and index < len(self.shards):
            offset = start - int(self.token_starts[index])
            part = self.shards[index].tokens.read(offset, offset + length)
            parts.append(part)
            start, length, index = start + len(part), length - len(part), index + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.zeros(0, np.int64)])

    def document_numbers(self, start: int, length: int) -> np.ndarray:
        """Number the documents of `length` tokens from index `start`: int64, 0 for the first token's, then 1, 2, ..."""
        places = np.arange(start, start + length)
        numbers = np.zeros(length, dtype=np.int64)
        first = int(np.searchsorted(self.token_starts, start, side="right")) - 1
        for begin, shard in zip(self.token_starts[first:], self.shards[first:]):
            if begin >= start + length:
                break
            low, high = (shard.groups.count_ended(place - int(begin)) for place in (start, start + length))
            numbers += np.searchsorted(shard.by_document["ends"].read(low, high) + begin, places, side="right")
        return numbers

    @property
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
    files = manifest["files"]
    found = {
        kind: BlockArray(path / name, dtype, None if checked else files[name].get("crc32"))
        for kind, (_, dtype) in {"tokens": ("tokens", manifest["dtype"]), **KINDS}.items()
        if (name := f"{split}.{kind}.bin") in files
    }
    tokens, scored = found.pop("tokens"), found.pop("scored", None)
    return Shard(path, split, tokens, scored, found, manifest["sources"], files[f"{split}.ends.bin"]["sha256"])
