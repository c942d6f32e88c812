"""Token shards, which training maps into memory, and the records by which they are checked.

A shard is a folder, published by one rename:

    manifest.json      see `Manifest`
    SPLIT.tokens.bin   token ids, uint16 or uint32, documents end to end, <eos> included
    SPLIT.ends.bin     int64, where each document ends
    SPLIT.sources.bin  uint32, index of each document's source in the manifest
    SPLIT.scored.bin   uint8, 0 for tokens that are not scored; only if there are such tokens
    held_out.bytes.bin uint32, bytes of the original text that each token encodes; not in shards of older versions

prepared.json is written next to the shards after the last one, see `PreparedFolder`. Opening compares names and sizes.
lab.verify also hashes every file.
"""

from __future__ import annotations

import resource
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NotRequired, TypeVar

import numpy as np
from pydantic import ConfigDict, ValidationError, with_config
from typing_extensions import TypedDict

from lab.core.errors import DataError
from lab.core.files import FileEntry, check_sizes
from lab.core.schema import adapter

MANIFEST, PREPARED = "manifest.json", "prepared.json"
RESTORE = "restore it, or delete the folder and prepare again"
Record = TypeVar("Record")
Split = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "held_out")
Counts = dict[Literal["documents", "tokens"], int]


@with_config(ConfigDict(extra="forbid"))  # a damaged name of an optional entry is no entry
class Manifest(TypedDict):
    """A shard's manifest: its corpus and settings, its own name, and size and SHA-256 of every other file.

    Documents refer to `sources` by number; `skips` counts skipped documents by reason; `inputs` are local files read.
    `encoding` is of texts with their tag, or all turns, at once; older versions encoded each alone, and had none.
    """

    name: str
    task: str
    dtype: Literal["<u2", "<u4"]
    splits: dict[Split, Counts]
    skips: dict[str, int]
    sources: list[str]
    files: dict[str, FileEntry]
    inputs: NotRequired[dict[str, FileEntry]]
    encoding: NotRequired[Literal["whole"]]


class PreparedFolder(TypedDict):
    """The record of a folder of shards: their corpus and settings, their number, and the other files of the folder."""

    name: str
    identity: dict[str, Any]
    tasks: int
    files: dict[str, FileEntry]


def task_name(task: int) -> str:
    return f"task-{task:05d}"


def shards_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("task-*[0-9]"))


def suggest_repair(shard: Path) -> str:
    return f"restore it, or delete {shard} and run probe-lab prepare again"


def read_record(path: Path, shape: type[Record], fix: str) -> Record:
    """Read a record.

    Raises: DataError, also for one of another shape.
    """
    try:
        # strict: a number that is written as a string is an error, not a number
        record: Record = adapter(shape).validate_json(path.read_bytes(), strict=True)
        return record
    except (ValidationError, OSError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise DataError(f"{path}: cannot be read ({reason}); {fix}") from error


def read_shard_manifest(shard: Path) -> Manifest:
    """Read a shard's manifest.

    Raises: DataError, also if it belongs to another shard, or counts other tokens or documents than its files have.
    """
    fix = suggest_repair(shard)
    manifest = read_record(shard / MANIFEST, Manifest, fix)
    if manifest["task"] != shard.name:
        raise DataError(f"{shard / MANIFEST}: is that of {manifest['task']}; {fix}")
    types = array_types(manifest["dtype"])
    for split, counts in manifest["splits"].items():
        for array, n in (("tokens", counts["tokens"]), ("ends", counts["documents"])):
            entry = manifest["files"].get(f"{split}.{array}.bin")
            if entry and entry["bytes"] != n * np.dtype(types[array]).itemsize:
                raise DataError(f"{shard / MANIFEST}: counts {n} {array} of {split}, its file has others; {fix}")
    return manifest


def read_prepared(folder: Path) -> PreparedFolder | None:
    """Read prepared.json; None if the folder has none.

    Raises: DataError.
    """
    path = folder / PREPARED
    return read_record(path, PreparedFolder, RESTORE) if path.exists() else None


def read_manifests(folder: Path) -> dict[Path, Manifest]:
    """Read the manifests of a folder's shards in order, and compare names and sizes with its files.

    Raises: DataError naming the first shard or file that differs.
    """
    record = read_prepared(folder)
    tasks = found = shards_in(folder)
    if record is not None:
        tasks = [folder / task_name(task) for task in range(record["tasks"])]
    for path in sorted({*tasks} ^ {*found}):
        rule = f"is not one of the {len(tasks)} shards of {PREPARED}; move it elsewhere"
        if path in tasks:
            rule = f"is missing, {PREPARED} records it; restore it, or run probe-lab prepare again"
        raise DataError(f"{path}: {rule}")
    manifests = {}
    for path in tasks:
        manifests[path] = manifest = read_shard_manifest(path)
        if record is not None and manifest["name"] != record["name"]:
            raise DataError(
                f"{path}: is a shard of {manifest['name']}, not of {record['name']}; {suggest_repair(path)}"
            )
        if "train.scored.bin" in manifest["files"] and "encoding" not in manifest:
            raise DataError(
                f"{path}: an older version encoded the turns or tags of its documents alone, which changes the tokens; "
                f"delete {folder} and prepare again"
            )
        check_sizes(path, manifest["files"], suggest_repair(path))
    if record is not None:
        check_sizes(folder, record["files"], RESTORE, hashes=True)
    return manifests


def token_dtype(vocab_size: int) -> Literal["<u2", "<u4"]:
    return "<u2" if vocab_size <= 2**16 else "<u4"


def array_types(dtype: str) -> dict[str, str]:
    """Return the type of each array of a split, by the type of its tokens."""
    return {"tokens": dtype, "scored": "u1", "ends": "<i8", "sources": "<u4", "bytes": "<u4"}


@dataclass(frozen=True, eq=False)
class Shard:
    """One split of one shard, mapped into memory; older shards and training tokens lack `bytes`.

    Shapes: `tokens`, `scored` uint8, `bytes` uint32 (tokens,), `ends` int64, `sources` uint32 (documents,).
    """

    folder: Path
    split: str
    manifest: Manifest
    tokens: np.ndarray
    scored: np.ndarray
    ends: np.ndarray
    sources: np.ndarray
    bytes: np.ndarray | None = None

    @classmethod
    def open_all(cls, manifests: Mapping[Path, Manifest], split: Split) -> list[Shard]:
        """Map one split of the shards into memory; a shard without tokens of it is skipped, as empty files have no map.

        The order of all shards stays: tokens are numbered end to end over it.
        """
        allow_open_files()
        shards = []
        for folder, manifest in manifests.items():
            if not manifest["splits"][split]["tokens"]:
                continue
            maps: dict[str, np.ndarray] = {}
            for array, dtype in array_types(manifest["dtype"]).items():
                name = f"{split}.{array}.bin"
                if name in manifest["files"]:
                    # slices of an ndarray are made faster than those of a memmap
                    maps[array] = np.memmap(folder / name, dtype, "r").view(np.ndarray)
            maps.setdefault("scored", np.broadcast_to(np.uint8(1), maps["tokens"].shape))
            shards.append(cls(folder, split, manifest, **maps))
        return shards

    def part(self, document: int) -> slice:
        """Return where a document's tokens are."""
        start = int(self.ends[document - 1]) if document else 0
        return slice(start, int(self.ends[document]))


def allow_open_files() -> None:
    """Raise this process's limit of open files as far as its user may.

    Each map keeps its file open, so 512 shards of 3 files or more exceed the usual limit of 1,024.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):  # macOS has a limit below the one it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class TokenStore:
    """All documents of one split, end to end over its shards, read by memory map.

    Units: `starts` is where each shard begins, in tokens from the split's beginning.
    """

    def __init__(self, shards: list[Shard]) -> None:
        self.shards = shards
        self.starts = [0, *accumulate(len(shard.tokens) for shard in shards)]
        self.n_tokens = self.starts[-1]

    @classmethod
    def open(cls, folder: Path, split: Split) -> TokenStore:
        """Open the shards of a prepared folder, checked against their manifests.

        Raises: DataError for a broken shard, or an empty split.
        """
        manifests = read_manifests(folder)
        if not manifests:
            raise DataError(
                f"{folder.absolute()}: contains no shards, which this command needs; run probe-lab prepare, copy the "
                "shards there, or name another text where a command takes one"
            )
        shards = Shard.open_all(manifests, split)
        if not shards:
            raise DataError(
                f"{folder}: no {split} documents; raise data.held_out_frac, give more documents, or set probe to null"
            )
        return cls(shards)

    def parts(self, start: int, length: int) -> Iterable[tuple[Shard, int]]:
        """Yield the shards that `length` tokens from index `start` are in, each with this index counted from its own.

        The index is negative in shards after the first.
        """
        index = bisect_right(self.starts, start) - 1
        for begin, shard in zip(self.starts[index:-1], self.shards[index:]):
            if begin >= start + length:
                break
            yield shard, start - begin

    def read(self, start: int, length: int, array: Literal["tokens", "scored"] = "tokens") -> np.ndarray:
        """Read `length` tokens, or their marks, from index `start`, across shards; fewer at the end of the split."""
        parts = [getattr(shard, array)[max(at, 0) : at + length] for shard, at in self.parts(start, length)]
        if len(parts) == 1:
            return parts[0]  # a view without a copy, in nearly every call
        return np.concatenate(parts or [np.zeros(0, np.int64)])

    def document_numbers(self, start: int, length: int) -> np.ndarray:
        """Number the documents of `length` tokens from index `start`: int64, 0 for the first token's, then 1, 2, ...

        Documents without tokens take a number as well.
        """
        begins = [np.zeros(0, np.int64)]
        for shard, at in self.parts(start, length):
            # the end of a document is the index at which the next one begins
            first, stop = shard.ends.searchsorted((at, at + length - 1), side="right").tolist()
            begins.append(shard.ends[first:stop] - at)
        return np.bincount(np.concatenate(begins), minlength=length).cumsum()

    @cached_property
    def bytes(self) -> TokenStore | None:
        """The bytes of the tokens' original text, read as tokens are; None if a shard does not record them."""
        shards = []
        for shard in self.shards:
            if shard.bytes is None:
                return None
            shards.append(replace(shard, tokens=shard.bytes))
        return TokenStore(shards)

    @cached_property
    def scores_all(self) -> bool:
        return not any(f"{shard.split}.scored.bin" in shard.manifest["files"] for shard in self.shards)

    def documents(self) -> Iterable[np.ndarray]:
        for shard in self.shards:
            for document in range(len(shard.ends)):
                yield shard.tokens[shard.part(document)]
