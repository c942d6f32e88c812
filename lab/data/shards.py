"""Token shards, which preparation writes and training maps into memory.

A shard is a folder, published by one rename:

    manifest.json      format, splits, documents, tokens, skips by reason, sources, size and SHA-256 of each file
    SPLIT.tokens.bin   token ids, uint16 or uint32, documents end to end, <eos> included
    SPLIT.ends.bin     int64, where each document ends
    SPLIT.sources.bin  uint32, index of each document's source in the manifest
    SPLIT.scored.bin   uint8, 0 for tokens that are not scored; only if there are such tokens
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.errors import DataError
from lab.files import entries_of, publish_folder, sha256, write_json
from lab.formats import FORMAT, KEY, refuse_unknown

SPLITS, DTYPES = ("train", "held_out"), ("<u2", "<u4")
VERIFY_BYTES = 2**28  # shards of a smaller total size are hashed when opened; larger ones by --verify only


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
            "dtype": self.dtype,
            "splits": {
                split: {"documents": len(self.ends[split]), "tokens": self.ends[split][-1] if self.ends[split] else 0}
                for split in SPLITS
            },
            "skips": dict(self.skips),
            "sources": list(self.sources),
            "files": {
                p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in sorted(self.temporary.iterdir())
            },
        }
        write_json(self.temporary / "manifest.json", manifest)
        publish_folder(self.temporary, final)
        return manifest


def read_manifest(shard: Path) -> dict[str, Any]:
    """Read a shard's manifest.

    Raises: DataError, also for a manifest of another shape or of an unknown format.
    """
    try:
        manifest = json.loads((shard / "manifest.json").read_text(encoding="utf-8"))
        fault = fault_of(manifest)
    except (OSError, ValueError, RecursionError) as error:
        fault = str(error)
    if fault is not None:
        raise DataError(f"{shard}: its manifest cannot be read ({fault}); delete the folder and prepare again")
    refuse_unknown(shard / "manifest.json", manifest.get(KEY), DataError)
    read: dict[str, Any] = manifest
    return read


def fault_of(manifest: Any) -> str | None:
    """Return why a manifest has another shape, or None."""
    if not isinstance(manifest, dict) or entries_of(manifest) is None:
        return "it does not list files of its folder"
    splits, kinds = manifest.get("splits"), {"sources": list, "skips": dict}
    if manifest.get("dtype") not in DTYPES or not isinstance(splits, dict) or splits.keys() != set(SPLITS):
        return "it has no dtype, or other splits"
    sizes = [size.get(unit) for size in splits.values() if isinstance(size, dict) for unit in ("documents", "tokens")]
    if len(sizes) < 2 * len(SPLITS) or not all(isinstance(size, int) for size in sizes):
        return "its splits have no sizes"
    wrong = [name for name, kind in kinds.items() if not isinstance(manifest.get(name), kind)]
    return f"it has no {wrong[0]}" if wrong else None


def check_shard(shard: Path, manifest: dict[str, Any], hashes: bool) -> None:
    """Compare a shard's files with its manifest: sizes, and hashes if asked.

    Raises: DataError naming the file.
    """
    for name, expected in manifest["files"].items():
        path = shard / name
        size = path.stat().st_size if path.exists() else None
        if size != expected["bytes"]:
            has = "is missing" if size is None else f"has {size} bytes"
            raise DataError(
                f"{path}: {has}, its manifest records {expected['bytes']}; delete {shard} and run lab.prepare again"
            )
        if hashes and sha256(path) != expected["sha256"]:
            raise DataError(f"{path}: SHA-256 differs from its manifest; delete {shard} and run lab.prepare again")


@dataclass(frozen=True, eq=False)
class Shard:
    """One split of one shard, mapped into memory.

    Shapes: `tokens` (tokens,), `ends` int64 (documents,), `sources` uint32 (documents,), `scored` uint8 (tokens,) or
        None where every token is scored.
    """

    folder: Path
    split: str
    tokens: np.ndarray
    ends: np.ndarray
    sources: np.ndarray
    source_names: list[str]
    scored: np.ndarray | None

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
        paths = sorted(path for path in folder.glob("task-*") if path.is_dir())
        manifests = {path: read_manifest(path) for path in paths}
        total = sum(file["bytes"] for m in manifests.values() for file in m["files"].values())
        shards = []
        for path, manifest in manifests.items():
            check_shard(path, manifest, hashes=total <= VERIFY_BYTES)
            if manifest["splits"][split]["tokens"]:
                shards.append(open_shard(path, manifest, split))
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
            part = self.shards[index].tokens[offset : offset + length]
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
            low, high = np.searchsorted(shard.ends, (start - begin, start + length - begin), side="right")
            numbers += np.searchsorted(shard.ends[low:high] + begin, places, side="right")
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


def open_shard(path: Path, manifest: dict[str, Any], split: str) -> Shard:
    """Map one split of one shard into memory."""
    scored = path / f"{split}.scored.bin"
    return Shard(
        path,
        split,
        np.memmap(path / f"{split}.tokens.bin", dtype=manifest["dtype"], mode="r"),
        np.memmap(path / f"{split}.ends.bin", dtype="<i8", mode="r"),
        np.memmap(path / f"{split}.sources.bin", dtype="<u4", mode="r"),
        manifest["sources"],
        np.memmap(scored, dtype=np.uint8, mode="r") if scored.exists() else None,
    )
