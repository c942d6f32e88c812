"""Tokenizing: one task of a corpus becomes one shard, which a writer collects and publishes.

Long conversations are cut between exchanges:

    conversation    U1 A1 | U2 A2 | U3 A3 | U4 A4        at most 5 tokens a sample, each turn one
    samples         U1 A1 U2 A2,  U3 A3 U4 A4            (a third exchange would make 6)

Source: arXiv:2401.07004, section 4.1 (SFT data), which follows the cleaning of Zheng et al. 2023 (FastChat): English
alone, none of less than 10,000 tokens, longer ones split to at most 16,384. FastChat names the language by a
classifier; here it is the share of ASCII among the letters, which Dutch or Italian pass as well.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import ArrayLike

from lab.core.errors import DiskError
from lab.core.files import FileEntry, build_manifest, free_bytes, name_temporary, publish_folder, write_json
from lab.data.chat import UNSCORED, Parts, join_parts
from lab.data.config import Conversations, DataConfig
from lab.data.corpora import Item, Reader, TextDocument, open_corpus
from lab.data.encoding import count_bytes, encode_texts, mark_tokens
from lab.data.shards import MANIFEST, SPLITS, Manifest, Split, shards_in, task_name, token_dtype
from lab.data.sources import hash_sources, read_times
from lab.data.text_files import COMPRESSIONS, Listing, has_suffix
from lab.data.tokenizer import assign_split, load_tokenizer, n_ids, special_ends

PACKED_TOKENS = 0.7  # in a byte of a compressed file: SlimPajama has 627B in 895 GB
BATCH_DOCUMENTS = 256


def run_task(config: DataConfig, folder: Path, eos: int, listing: Listing, task: int) -> Manifest:
    """Tokenize one task of the corpus, which consists of the listed files, into one shard."""
    tokenizer = load_tokenizer(folder)
    reader = open_corpus(config, listing)
    items = reader.read(task)
    times: dict[str, int] = {}
    if listing.root is not None:
        # before the files are read, so that a change of one meanwhile is found
        times = read_times(listing.root, list(listing.files)[task :: reader.n_tasks])
    marks_scored = config.tags or isinstance(config.corpus, Conversations)
    dtype = token_dtype(n_ids(tokenizer))
    final = folder / task_name(task)
    writer = TokenShardWriter(name_temporary(final), dtype, name=config.shard_name, marks_scored=marks_scored)
    before = np.array(special_ends(tokenizer)[0], dtype=np.uint32)

    def count_tokens(parts: Parts) -> int:
        n_tokens = len(tokenizer.encode(join_parts(parts), add_special_tokens=False).ids)
        return len(before) + n_tokens + 1  # the end of the document

    if isinstance(config.corpus, Conversations):
        items = cut_samples(config.corpus, items, count_tokens)
    while batch := list(islice(items, BATCH_DOCUMENTS)):
        documents: list[tuple[TextDocument, Split, Parts]] = []
        texts: dict[Split, list[str]] = {split: [] for split in SPLITS}
        for item in batch:
            if isinstance(item, str):
                writer.skips[item] += 1
                continue
            split = assign_split(item.text, config.held_out_frac)
            parts = item.parts or ((item.text, True),)
            if config.tags:
                parts = ((f"{item.source}\n", False), *parts)
            documents.append((item, split, parts))
            texts[split].append(join_parts(parts))
        encoded = {}
        for split in SPLITS:
            # all texts of a batch are encoded in parallel; spans are computed, at a cost, of the split that needs them
            with_spans = marks_scored or split == "held_out"
            encoded[split] = encode_texts(tokenizer, texts[split], with_spans=with_spans)
        for document, split, parts in documents:
            ids, spans = next(encoded[split])
            if eos in ids:
                # a unigram model or one of whole words finds a special token in a text if it is a piece of its own
                writer.skips["spells data.tokenizer.eos"] += 1
                continue
            ends = (len(before), 1)  # special tokens, which are scored, before and after the text
            marks: ArrayLike = True
            n_bytes = None
            if spans is not None:
                # neither a tag is scored nor a prompt (arXiv:2411.13476, section 5.2; 2401.07004, section 4)
                marks = np.pad(mark_tokens(spans, parts), ends, constant_values=True)
            if spans is not None and split == "held_out":
                whole = join_parts(parts)
                n_bytes = np.pad(count_bytes(spans, whole, len(whole) - len(document.text)), ends)
            writer.add(split, np.concatenate([before, ids, np.array([eos])]), document.source, marks, n_bytes)
    if listing.root is not None:
        writer.inputs = hash_sources(listing.root, times)
    return writer.close(final)


class TokenShardWriter:
    """Collects one task's documents and publishes them as a shard; `name` is that of the corpus and its settings."""

    def __init__(
        self, temporary: Path, dtype: Literal["<u2", "<u4"], *, name: str = "", marks_scored: bool = False
    ) -> None:
        self.temporary, self.dtype, self.name, self.marks_scored = temporary, dtype, name, marks_scored
        temporary.mkdir(parents=True)
        self.files: dict[str, BinaryIO] = {}
        self.ends: dict[Split, list[int]] = {split: [0] for split in SPLITS}  # after the start of the first document
        self.owners: dict[Split, list[int]] = {split: [] for split in SPLITS}
        self.sources: dict[str, int] = {}
        self.skips: Counter[str] = Counter()
        self.inputs: dict[str, FileEntry] = {}

    def write(self, split: Split, array: str, values: ArrayLike, dtype: str) -> None:
        """Append values to a file of the shard, which the first call opens."""
        name = f"{split}.{array}.bin"
        if name not in self.files:
            self.files[name] = (self.temporary / name).open("wb")
        self.files[name].write(np.asarray(values).astype(dtype).tobytes())

    def add(
        self,
        split: Split,
        ids: list[int] | np.ndarray,
        source: str,
        scored: ArrayLike = True,
        n_bytes: np.ndarray | None = None,
    ) -> None:
        """Append a document; `scored` marks its scored tokens.

        All documents of a split have `n_bytes`, or none has.
        """
        self.write(split, "tokens", ids, self.dtype)
        if n_bytes is not None:
            self.write(split, "bytes", n_bytes, "<u4")
        if self.marks_scored:
            self.write(split, "scored", np.full(len(ids), scored), "u1")
        self.ends[split].append(self.ends[split][-1] + len(ids))
        self.owners[split].append(self.sources.setdefault(source, len(self.sources)))

    def close(self, final: Path) -> Manifest:
        """Write the boundaries, sources and manifest, and publish the shard under its name."""
        for split in SPLITS:
            self.write(split, "ends", self.ends[split][1:], "<i8")
            self.write(split, "sources", self.owners[split], "<u4")
            self.write(split, "tokens", [], self.dtype)  # a split without documents has its files, too
            if self.marks_scored:
                self.write(split, "scored", [], "u1")
        for file in self.files.values():
            file.close()
        manifest: Manifest = {
            "name": self.name,
            "task": final.name,
            "encoding": "whole",
            "dtype": self.dtype,
            "splits": {s: {"documents": len(ends) - 1, "tokens": ends[-1]} for s, ends in self.ends.items()},
            "skips": dict(self.skips),
            "sources": list(self.sources),
            "files": build_manifest(self.temporary),
            "inputs": self.inputs,
        }
        # the rename publishes all files at once: a shard under its final name is complete
        write_json(self.temporary / MANIFEST, manifest)
        publish_folder(self.temporary, final)
        return manifest


def check_disk(folder: Path, reader: Reader, dtype: str) -> None:
    """Reject a disk without room for the shards of the missing tasks, by a low estimate of their tokens.

    Raises: DiskError.
    """
    tokens = 0.0
    for name, size in reader.listing.files.items():
        tokens += size * (PACKED_TOKENS if has_suffix(name, (*COMPRESSIONS, ".parquet")) else 0.2)
    missing_share = 1 - len(shards_in(folder)) / reader.n_tasks
    needed, free = tokens * np.dtype(dtype).itemsize * missing_share, free_bytes(folder)
    if needed > free:
        raise DiskError(
            f"{folder}: the shards need about {needed / 1e9:,.1f} GB more, and {free / 1e9:,.1f} GB are free; set "
            "data.folder to a larger disk"
        )


def cut_samples(corpus: Conversations, items: Iterable[Item], count: Callable[[Parts], int]) -> Iterator[Item]:
    """Yield samples of the conversations until the corpus's limit; `count` counts the tokens of some parts."""
    n_samples = 0
    for item in items:
        for sample in to_samples(corpus, item, count):
            yield sample
            n_samples += isinstance(sample, TextDocument)
            if n_samples == corpus.limit:
                return


def to_samples(corpus: Conversations, item: Item, count: Callable[[Parts], int]) -> Iterator[Item]:
    """Cut a conversation into samples, each of which may be dropped by the corpus's settings."""
    if isinstance(item, str) or item.parts is None:
        yield item
        return
    if corpus.min_ascii and ascii_share(item.text) < corpus.min_ascii:
        yield "of other letters than ASCII"
        return
    for parts in cut_conversation(item.parts, corpus.max_tokens, count):
        if not any(is_scored for _, is_scored in parts):
            yield UNSCORED
        elif corpus.min_tokens and count(parts) < corpus.min_tokens:
            yield f"shorter than {corpus.min_tokens} tokens"
        else:
            yield TextDocument(join_parts(parts), item.source, parts)


def cut_conversation(parts: Parts, most: int | None, count: Callable[[Parts], int]) -> Iterator[Parts]:
    """Cut a conversation into runs of whole exchanges of at most `most` tokens; a longer exchange is a run of its own.

    An exchange is a response and what precedes it.
    """
    ends = [index + 1 for index, (_, is_scored) in enumerate(parts) if is_scored]
    if ends[-1:] != [len(parts)]:  # what follows the last response
        ends.append(len(parts))
    start = last = 0
    for end in ends:
        if most is not None and last > start and count(parts[start:end]) > most:
            yield parts[start:last]
            start = last
        last = end
    yield parts[start:]


def ascii_share(text: str) -> float:
    """Return the share of ASCII among a text's letters; 1 for a text without letters."""
    letters = [character for character in text if character.isalpha()]
    return sum(letter.isascii() for letter in letters) / len(letters) if letters else 1.0
