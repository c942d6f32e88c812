"""Arrays that are computed from a shard and stored in hidden files beside it, each with its size and SHA-256.

The record of .asked-train-01234567.npy is .asked-train-01234567.json, a manifest of this one file, written last.

Such are evidence distances of training tokens (lab.evidence.base), int32. Those of `answers` are the distances of
digits of answers alone. A file's name has a part of the hash of the tokens, so that the numbers of other tokens are not
read. Labels of asked come from generating the documents again, whose tokens are compared with the shard's.
"""

import io
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from lab.core.arrays import IntArray
from lab.core.errors import DataError
from lab.core.files import FileEntry, check_sizes, entries_of, read_object, write_atomic, write_json
from lab.data.config import DataConfig
from lab.data.corpora import TASK_DOCUMENTS
from lab.data.shards import Shard, TokenStore, again
from lab.data.synthetic import Synthetic
from lab.data.tokenizer import special_ends, split_of


def save(path: Path, values: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, values)
    write_json(record_of(path), {"files": {path.name: write_atomic(path, buffer.getvalue())}})


def load(path: Path, *, hashes: bool = True) -> np.ndarray | None:
    """Map an array into memory; None where none, or not all of it, has been stored.

    Raises: DataError for one that is not what was written.
    """
    if not record_of(path).exists():
        return None
    remedy = f"restore it, or delete it and {record_of(path).name} to have it computed again"
    check_sizes(path.parent, {path.name: entry_of(path)}, remedy, hashes=hashes)
    array: Any = np.load(path, mmap_mode="r", allow_pickle=False)  # of a view of a memory map, slices are faster
    return array.view(np.ndarray)


def entry_of(path: Path) -> FileEntry:
    """Read the size and SHA-256 of an array from its record.

    Raises: DataError.
    """
    record = record_of(path)
    files = entries_of(read_object(record, DataError, "delete it")) or {}
    if path.name not in files:
        raise DataError(f"{record}: does not record {path.name}; delete it")
    return files[path.name]


def record_of(path: Path) -> Path:
    return path.with_suffix(".json")


def path_of(shard: Shard, kind: str) -> Path:
    digest = shard.manifest["files"][f"{shard.split}.tokens.bin"]["sha256"][:8]
    return shard.folder / f".{kind}-{shard.split}-{digest}.npy"


def numbers_of(store: TokenStore, kind: str, setting: str, *, hashes: bool = True) -> TokenStore:
    """Open the numbers of a split's tokens, which are read as the tokens are; `setting` needs them.

    Raises: DataError where there are none, or they are not what was written, by their sizes or their `hashes`.
    """
    shards = []
    for shard in store.shards:
        path = path_of(shard, kind)
        if (array := load(path, hashes=hashes)) is None:
            raise DataError(f"{setting}: needs {path}, which is missing; prepare the corpus again")
        shards.append(replace(shard, tokens=array))
    return TokenStore(shards)


def store_numbers(store: TokenStore, kind: str, compute: Callable[[Shard], np.ndarray]) -> None:
    for shard in store.shards:
        if load(path_of(shard, kind), hashes=False) is None:
            save(path_of(shard, kind), compute(shard))


def labels_of(shard: Shard, config: DataConfig, tokenizer: Tokenizer, answers: bool = False) -> np.ndarray:
    """Label the tokens of a shard of a generated corpus: what each copies, or those alone that `answers` are made of.

    Raises: DataError where the shard holds other documents than the generator makes.
    """
    corpus = config.corpus
    assert isinstance(corpus, Synthetic), "checked with the config"
    first = int(shard.folder.name.partition("-")[2]) * TASK_DOCUMENTS
    before, after = special_ends(tokenizer)
    out = np.zeros(len(shard.tokens), dtype=np.int32)
    document = 0
    for index in range(first, min(first + TASK_DOCUMENTS, corpus.documents)):
        text = corpus.document(index)
        if split_of(text, config.held_out_frac) != shard.split:
            continue
        encoding = tokenizer.encode(text, add_special_tokens=False)
        part = shard.part(document)
        if shard.tokens[part].tolist()[:-1] != [*before, *encoding.ids, *after]:  # the last one ends the document
            raise DataError(f"{shard.folder}: document {document} is not what is generated; {again(shard.folder)}")
        ids, ends = np.array(encoding.ids), np.array([end for _, end in encoding.offsets])
        begin = part.start + len(before)
        out[begin : begin + len(ids)] = distances_to_copied(ids, ends, corpus.copies(index, answers))
        document += 1
    return out


def distances_to_copied(ids: IntArray, ends: IntArray, copies: Iterable[tuple[int, int, int]]) -> IntArray:
    """Compute the distance from each token to the one that it copies, 0 where it copies none.

    `copies` are parts of the text, each with its beginning, its end, and the end of what it copies. A token
    belongs to the part that its last character lies in, and copies the token that ends as far before the copied end.

    Shapes: `ids`, `ends` of the tokens in characters, rising (tokens,); the distances (tokens,).
    Example:
        >>> # "ab cd ab": the last word, of two tokens, copies the first one, which has no space before it
        >>> ids, ends = np.array([7, 8, 4, 6, 8]), np.array([1, 2, 5, 7, 8])
        >>> distances_to_copied(ids, ends, [(5, 8, 2)]).tolist()
        [0, 0, 0, 0, 3]
    """
    out = np.zeros(len(ids), dtype=np.int64)
    place_of = {end: place for place, end in enumerate(ends.tolist())}
    for begin, stop, earlier in copies:
        first, beyond = np.searchsorted(ends, (begin, stop), side="right").tolist()
        for place in range(first, beyond):
            copied = place_of.get(earlier - stop + int(ends[place]))
            if copied is not None and ids[copied] == ids[place]:
                out[place] = place - copied
    return out
