"""Numbers of training tokens that are stored beside the shards: evidence labels, and losses of a reference model.

Documents are generated again and their tokens compared with the shard's. A label is the distance from a token to the
token that it copies (lab.evidence.asked), 0 where it copies none. A hidden file of the shard's folder holds those of
the training split; its name has a part of the hash of the tokens, so that the labels of other tokens are not read.
Losses are in nats, float16, and written by eval.demand --score.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from lab.data.config import DataConfig, Synthetic
from lab.data.corpora import TASK_DOCUMENTS
from lab.data.preparation import shard_folder
from lab.data.shards import Shard, TokenStore, again, read_manifests
from lab.data.synthetic import SyntheticText
from lab.data.tokenizer import BATCH_DOCUMENTS, load_tokenizer, special_ends, split_of
from lab.errors import DataError
from lab.files import write_atomic

IntArray = npt.NDArray[np.int64]
Kind = Literal["asked", "loss"]
NEEDED: dict[Kind, tuple[str, str]] = {  # the setting that needs them, and the options of eval.demand that store them
    "asked": ("evidence.method", "--evidence=asked"),
    "loss": ("weights.control", "--score=MODEL"),
}


class Labels:
    """The stored labels of a split's tokens, read as its tokens are.

    Raises: DataError where there are none.
    """

    def __init__(self, store: TokenStore, kind: Kind = "asked") -> None:
        self.store = store
        paths = {shard.folder: path_of(shard, kind) for shard in store.shards}
        if missing := [path for path in paths.values() if not path.exists()]:
            field, options = NEEDED[kind]
            raise DataError(
                f"{field}={kind}: is not stored in {missing[0]}; run python -m eval.demand CONFIG {options}"
            )
        self.arrays = {folder: np.load(path, mmap_mode="r").view(np.ndarray) for folder, path in paths.items()}

    def read(self, start: int, length: int) -> np.ndarray:
        """Read the labels of `length` tokens from index `start`, 0 beyond the split."""
        parts = [self.arrays[shard.folder][max(at, 0) : at + length] for shard, at in self.store.parts(start, length)]
        n = sum(map(len, parts))
        return np.concatenate([*parts, np.zeros(length - n, dtype=np.int8)])


def path_of(shard: Shard, kind: Kind = "asked") -> Path:
    """Name the file of a shard's labels."""
    digest = shard.manifest["files"][f"{shard.split}.tokens.bin"]["sha256"][:8]
    return shard.folder / f".{kind}-{shard.split}-{digest}.npy"


def write_numbers(shard: Shard, kind: Kind, numbers: np.ndarray) -> None:
    """Store a number for each token of a shard."""
    buffer = io.BytesIO()
    np.save(buffer, numbers)
    write_atomic(path_of(shard, kind), buffer.getvalue())


def write_labels(config: DataConfig) -> None:
    """Store the labels of the training split, those that are missing.

    Raises: DataError where a shard holds other documents than the generator makes.
    """
    folder = shard_folder(config)
    tokenizer = load_tokenizer(folder)
    for shard in Shard.all_of(read_manifests(folder), "train"):
        if not path_of(shard).exists():
            write_numbers(shard, "asked", labels_of(shard, config, tokenizer))


def labels_of(shard: Shard, config: DataConfig, tokenizer: Tokenizer) -> npt.NDArray[np.int32]:
    """Label the tokens of a shard.

    Raises: DataError as `write_labels`.
    """
    assert isinstance(config.corpus, Synthetic), "checked with the config"
    generator = SyntheticText(config.corpus)
    task = int(shard.folder.name.partition("-")[2])
    last = min((task + 1) * TASK_DOCUMENTS, config.corpus.documents)
    texts = ((index, generator.document(index)) for index in range(task * TASK_DOCUMENTS, last))
    kept = ((index, text) for index, text in texts if split_of(text, config.held_out_frac) == "train")
    lead, trail = (len(ends) for ends in special_ends(tokenizer))
    out = np.zeros(len(shard.tokens), dtype=np.int32)
    document = 0
    while batch := list(islice(kept, BATCH_DOCUMENTS)):
        for (index, _), encoding in zip(batch, tokenizer.encode_batch([text for _, text in batch]), strict=True):
            body = slice(lead, len(encoding.ids) - trail)
            ids = np.array(encoding.ids[body])
            part = shard.part(document)
            own = slice(part.stop - 1 - trail - len(ids), part.stop - 1 - trail)  # what ends a document is one token
            if not np.array_equal(shard.tokens[own], ids):
                raise DataError(f"{shard.folder}: document {document} is not what is generated; {again(shard.folder)}")
            ends = np.array([end for _, end in encoding.offsets[body]])
            out[own] = distances_to_copied(ids, ends, generator.copies(index))
            document += 1
    return out


def distances_to_copied(ids: IntArray, ends: IntArray, copies: Iterable[tuple[int, int, int]]) -> IntArray:
    """Compute the distance from each token to the one that it copies, 0 where it copies none.

    `copies` are rising parts of the text, each with its beginning, its end, and the end of what it copies. A token
    belongs to the part that its last character lies in, and copies the token that ends as far before the copied end.

    Shapes: `ids`, `ends` of the tokens in characters, rising (tokens,); the distances (tokens,).
    Example:
        >>> # "ab cd ab": the last word, of two tokens, copies the first one, which has no space before it
        >>> ids, ends = np.array([7, 8, 4, 6, 8]), np.array([1, 2, 5, 7, 8])
        >>> distances_to_copied(ids, ends, [(5, 8, 2)]).tolist()
        [0, 0, 0, 0, 3]
    """
    out = np.zeros(len(ids), dtype=np.int64)
    parts = np.array([*copies], dtype=np.int64).reshape(-1, 3)
    if not len(parts):
        return out
    begins, stops, earlier = parts.T
    number = np.minimum(np.searchsorted(stops, ends), len(parts) - 1)
    places = np.searchsorted(ends, earlier[number] - (stops[number] - ends))
    same = (ends > begins[number]) & (ends <= stops[number])
    same &= (ends[places] == earlier[number] - (stops[number] - ends)) & (ids[places] == ids)
    out[same] = (np.arange(len(ids)) - places)[same]
    return out
