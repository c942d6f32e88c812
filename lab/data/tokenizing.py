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
from itertools import chain, islice, product
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import ArrayLike

from lab.core.files import FileEntry, build_manifest, name_temporary, publish_folder, write_json
from lab.data.chat import UNSCORED, Parts, join_parts
from lab.data.config import Conversations, DataConfig
from lab.data.corpora import Item, TextDocument, open_corpus
from lab.data.encoding import count_bytes, encode_texts, mark_tokens
from lab.data.shards import MANIFEST, SPLITS, Counts, Manifest, Split, array_types, task_name, token_dtype
from lab.data.sources import hash_sources, read_times
from lab.data.text_files import Listing
from lab.data.tokenizer import assign_split, load_tokenizer, n_ids, special_ends

BATCH_DOCUMENTS = 256


def run_task(config: DataConfig, folder: Path, eos: int, listing: Listing, task: int) -> Manifest:
    """Tokenize one task of the corpus, which consists of the listed files, into one shard."""
    tokenizer = load_tokenizer(folder)
    reader = open_corpus(config, listing)
    items = reader.read(task)
    names = list(listing.files)[task :: reader.n_tasks]
    # before the files are read, so that a change of one meanwhile is found
    times = {} if listing.root is None else read_times(listing.root, names)
    marks_scored = config.tags or isinstance(config.corpus, Conversations)
    dtype = token_dtype(n_ids(tokenizer))
    writer = TokenShardWriter(folder / task_name(task), dtype, name=config.shard_name, marks_scored=marks_scored)
    before = np.array(special_ends(tokenizer)[0], dtype=np.uint32)
    if isinstance(config.corpus, Conversations):

        def count_tokens(parts: Parts) -> int:
            ends = len(before) + 1  # and the end of the document
            return ends + len(tokenizer.encode(join_parts(parts), add_special_tokens=False))

        items = cut_samples(config.corpus, items, count_tokens)
    while batch := list(islice(items, BATCH_DOCUMENTS)):
        documents: list[tuple[TextDocument, Split, Parts, str]] = []
        for item in batch:
            if isinstance(item, str):
                writer.skips[item] += 1
                continue
            parts = item.parts or ((item.text, True),)
            if config.tags:
                parts = ((f"{item.source}\n", False), *parts)
            documents.append((item, assign_split(item.text, config.held_out_frac), parts, join_parts(parts)))
        encoded = {}
        for split in SPLITS:
            # all texts of a batch are encoded in parallel; spans are computed, at a cost, of the split that needs them
            texts = [text for _, owner, _, text in documents if owner == split]
            encoded[split] = encode_texts(tokenizer, texts, with_spans=marks_scored or split == "held_out")
        for document, split, parts, text in documents:
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
                if split == "held_out":
                    n_bytes = np.pad(count_bytes(spans, text, len(text) - len(document.text)), ends)
            writer.add(split, np.concatenate([before, ids, [eos]]), document.source, marks, n_bytes)
    if listing.root is not None:
        writer.inputs = hash_sources(listing.root, times)
    return writer.close()


class TokenShardWriter:
    """Collects one task's documents and publishes them as a shard; `name` is that of the corpus and its settings."""

    def __init__(
        self, final: Path, dtype: Literal["<u2", "<u4"], *, name: str = "", marks_scored: bool = False
    ) -> None:
        self.final, self.dtype, self.name, self.marks_scored = final, dtype, name, marks_scored
        self.temporary = name_temporary(final)
        self.temporary.mkdir(parents=True)
        self.files: dict[str, BinaryIO] = {}
        self.counts: dict[Split, Counts] = {split: {"documents": 0, "tokens": 0} for split in SPLITS}
        self.sources: dict[str, int] = {}
        self.skips: Counter[str] = Counter()
        self.inputs: dict[str, FileEntry] = {}

    def write(self, split: Split, array: str, values: ArrayLike) -> None:
        """Append values to a file of the shard, which the first call opens."""
        name = f"{split}.{array}.bin"
        if name not in self.files:
            self.files[name] = (self.temporary / name).open("wb")
        self.files[name].write(np.asarray(values).astype(array_types(self.dtype)[array]).tobytes())

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
        counts = self.counts[split]
        counts["documents"] += 1
        counts["tokens"] += len(ids)
        self.write(split, "tokens", ids)
        self.write(split, "ends", [counts["tokens"]])
        self.write(split, "sources", [self.sources.setdefault(source, len(self.sources))])
        if n_bytes is not None:
            self.write(split, "bytes", n_bytes)
        if self.marks_scored:
            self.write(split, "scored", np.full(len(ids), scored))

    def close(self) -> Manifest:
        """Write the manifest, and publish the shard under its name."""
        for split, array in product(SPLITS, ("tokens", "ends", "sources", *["scored"] * self.marks_scored)):
            self.write(split, array, [])  # a split without documents has its files, too
        for file in self.files.values():
            file.close()
        manifest: Manifest = {
            "name": self.name,
            "task": self.final.name,
            "encoding": "whole",
            "dtype": self.dtype,
            "splits": self.counts,
            "skips": dict(self.skips),
            "sources": list(self.sources),
            "files": build_manifest(self.temporary),
            "inputs": self.inputs,
        }
        # the rename publishes all files at once: a shard under its final name is complete
        write_json(self.temporary / MANIFEST, manifest)
        publish_folder(self.temporary, self.final)
        return manifest


def cut_samples(corpus: Conversations, items: Iterable[Item], count: Callable[[Parts], int]) -> Iterator[Item]:
    """Yield samples of the conversations until the corpus's limit; `count` counts the tokens of some parts."""
    n_samples = 0
    for sample in chain.from_iterable(to_samples(corpus, item, count) for item in items):
        yield sample
        n_samples += isinstance(sample, TextDocument)
        if n_samples == corpus.limit:
            return


def to_samples(corpus: Conversations, item: Item, count: Callable[[Parts], int]) -> Iterator[Item]:
    """Cut a conversation into samples, each of which may be dropped by the corpus's settings."""
    if isinstance(item, str) or item.parts is None:
        yield item
        return
    letters = [character.isascii() for character in item.text if character.isalpha()]
    if sum(letters) < corpus.min_ascii * len(letters):
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
