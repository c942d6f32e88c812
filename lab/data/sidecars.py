"""Sidecar files: arrays that are computed from a shard and stored in hidden files next to it, with size and SHA-256.

The record of .asked-train-01234567.npy is .asked-train-01234567.json, a manifest of this one file, written last.

They contain evidence distances of training tokens (lab.evidence), int32; those of `answers` are the distances of the
digits of answers alone. Labels of `asked` come from generating the documents again, whose tokens are compared with
the shard's.
"""

import io
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from lab.core.errors import DataError
from lab.core.files import LEFTOVER, FileEntry, check_sizes, read_entries, read_object, remove, write_atomic, write_json
from lab.core.locks import LOCK_NAME, locked
from lab.core.types import IntArray
from lab.data.config import DataConfig
from lab.data.corpora import task_indices
from lab.data.shards import Shard, TokenStore, suggest_repair
from lab.data.synthetic import Synthetic
from lab.data.tokenizer import assign_split, special_ends


def save(path: Path, values: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, values)
    entry = write_atomic(path, buffer.getvalue())
    write_json(record_path(path), {"files": {path.name: entry}})  # last, as a kill may leave an array without a record


def load(path: Path, *, hashes: bool = True) -> np.ndarray | None:
    """Map an array into memory; None if it has not been stored, or not to its end.

    Raises: DataError for one that is not what was written.
    """
    if not record_path(path).exists():
        return None
    fix = f"restore it, or delete it and {record_path(path).name} to have it computed again"
    check_sizes(path.parent, {path.name: read_entry(path)}, fix, hashes=hashes)
    array: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    return array.view(np.ndarray)  # slices of an ndarray are made faster than those of a memmap


def read_entry(path: Path) -> FileEntry:
    """Read the size and SHA-256 of an array from its record.

    Raises: DataError.
    """
    record = record_path(path)
    files = read_entries(read_object(record, DataError, "delete it")) or {}
    if path.name not in files:
        raise DataError(f"{record}: does not record {path.name}; delete it")
    return files[path.name]


def record_path(path: Path) -> Path:
    return path.with_suffix(".json")


def remove_leftovers(path: Path) -> None:
    """Delete what a kill left half written of an array and its record."""
    for leftover in path.parent.glob(f".{path.stem}{LEFTOVER}"):
        remove(leftover)


def sidecar_path(shard: Shard, kind: str) -> Path:
    # a part of the tokens' hash in the name: an array of other tokens is not found
    digest = shard.manifest["files"][f"{shard.split}.tokens.bin"]["sha256"][:8]
    return shard.folder / f".{kind}-{shard.split}-{digest}.npy"


def open_sidecar(store: TokenStore, kind: str, setting: str, *, hashes: bool = False) -> TokenStore:
    """Open a sidecar of a split, which is read as tokens are; `setting` names the setting that needs it.

    Raises: DataError if it is missing, or has another size or, with `hashes`, another SHA-256 than recorded.
    """
    shards = []
    for shard in store.shards:
        path = sidecar_path(shard, kind)
        if (array := load(path, hashes=hashes)) is None:
            raise DataError(f"{setting}: needs {path}, which is missing; prepare the corpus again")
        shards.append(replace(shard, tokens=array))
    return TokenStore(shards)


def store_sidecar(store: TokenStore, kind: str, compute: Callable[[Shard], np.ndarray]) -> None:
    """Compute and store the missing arrays of a split; one process at a time does."""
    for shard in store.shards:
        path = sidecar_path(shard, kind)
        if load(path, hashes=False) is not None:
            continue
        with locked(shard.folder.parent / LOCK_NAME, wait=True):
            remove_leftovers(path)
            # another process may have stored it meanwhile
            if load(path, hashes=False) is None:
                save(path, compute(shard))


def label_tokens(shard: Shard, config: DataConfig, tokenizer: Tokenizer, answers: bool = False) -> np.ndarray:
    """Label each token of a shard of a generated corpus with the distance to what it copies, 0 for no copy.

    With `answers`, only the digits of answers have a distance.

    Raises: DataError if the generator does not make the shard's documents.
    """
    corpus = config.corpus
    assert isinstance(corpus, Synthetic), "checked with the config"
    before, _ = special_ends(tokenizer)
    labels = np.zeros(len(shard.tokens), dtype=np.int32)
    document = 0
    for index in task_indices(corpus, int(shard.folder.name.removeprefix("task-"))):
        text = corpus.document(index)
        if assign_split(text, config.held_out_frac) != shard.split:
            continue
        encoding = tokenizer.encode(text, add_special_tokens=False)
        part = shard.part(document)
        # the last token of a document is its end
        if shard.tokens[part].tolist()[:-1] != [*before, *encoding.ids]:
            rule = f"document {document} is not what is generated"
            raise DataError(f"{shard.folder}: {rule}; {suggest_repair(shard.folder)}")
        ids, ends = np.array(encoding.ids), np.array([end for _, end in encoding.offsets])
        begin = part.start + len(before)
        labels[begin : begin + len(ids)] = distances_to_copied(ids, ends, corpus.copies(index, answers))
        document += 1
    return labels


def distances_to_copied(ids: IntArray, ends: IntArray, copies: Iterable[tuple[int, int, int]]) -> IntArray:
    """Compute the distance from each token to the one that it copies, 0 for a token that copies none.

    `copies` are parts of the text, each with its beginning, its end, and the end of what it copies. A token belongs to
    the part that contains its last character.

    Shapes: `ids`, `ends` of the tokens in characters, rising (tokens,); the distances (tokens,).
    Example:
        >>> # "ab cd ab": the last word, of two tokens, copies the first one, which has no space before it
        >>> ids, ends = np.array([7, 8, 4, 6, 8]), np.array([1, 2, 5, 7, 8])
        >>> distances_to_copied(ids, ends, [(5, 8, 2)]).tolist()
        [0, 0, 0, 0, 3]
    """
    distances = np.zeros(len(ids), dtype=np.int64)
    index_by_end = {end: index for index, end in enumerate(ends.tolist())}
    for begin, stop, copied_end in copies:
        first, beyond = np.searchsorted(ends, (begin, stop), side="right").tolist()
        for index in range(first, beyond):
            # the copied token ends as far before the end of the copied part as this one before the end of the copy
            copied = index_by_end.get(copied_end - (stop - int(ends[index])))
            # a copy may be cut into other tokens than what it copies
            if copied is not None and ids[copied] == ids[index]:
                distances[index] = index - copied
    return distances
