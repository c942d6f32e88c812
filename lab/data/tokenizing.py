"""Tokenize a corpus: the tokenizer of its shards, and the documents of one task as one shard."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from lab.data import wording
from lab.data.config import Bpe, Conversations, DataConfig, Synthetic
from lab.data.conversations import Parts, marked, select
from lab.data.corpora import open_corpus, why_empty
from lab.data.manifest import SPLITS, Manifest, Split, task_name
from lab.data.shards import ShardWriter, token_dtype
from lab.data.text_files import Document
from lab.data.tokenizer import load_tokenizer, special_ends, train_bpe
from lab.errors import DataError
from lab.files import temporary_of, write_atomic

BATCH_DOCUMENTS = 256
HASH_BYTES = 8
TOKENIZER = "tokenizer.json"


def run_task(config: DataConfig, folder: Path, eos: int, task: int) -> Manifest:
    """Tokenize one task into one shard."""
    tokenizer = load_tokenizer(folder)
    temporary = temporary_of(folder / task_name(task))
    marks = config.tags or isinstance(config.corpus, Conversations)
    writer = ShardWriter(temporary, token_dtype(tokenizer.get_vocab_size()), name=config.shard_name, marks_scored=marks)
    pick, ends = splitter(config.held_out_frac), special_ends(tokenizer)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    @cache
    def tags(source: str) -> list[int]:
        return encode(f"{source}\n")

    def count(parts: Parts) -> int:
        return sum(len(encode(text)) for text, _ in parts) + sum(map(len, ends)) + 1  # the end of the document

    items = select(config.corpus, open_corpus(config).read(task), count)
    while batch := list(itertools.islice(items, BATCH_DOCUMENTS)):
        documents = [item for item in batch if isinstance(item, Document)]
        writer.skips.update(item.reason for item in batch if not isinstance(item, Document))
        encodings = tokenizer.encode_batch_fast([document.text for document in documents])
        for document, encoding in zip(documents, encodings, strict=True):
            ids, scored = encoding.ids, None
            if marks:
                ids, scored = marked(document, ids, ends, tags(document.source) if config.tags else [], encode)
                scored.append(True)
            ids.append(eos)
            writer.add(pick(document.text), ids, document.source, scored)
    return writer.close(folder / task_name(task))


def splitter(held_out_frac: float) -> Callable[[str], Split]:
    """Return the function that assigns a text to a split by its hash, so that duplicates share a split."""
    bound = int(held_out_frac * 2 ** (8 * HASH_BYTES))

    def split_of(text: str) -> Split:
        digest = hashlib.blake2b(text.encode("utf-8"), digest_size=HASH_BYTES).digest()
        return SPLITS[1] if int.from_bytes(digest, "little") < bound else SPLITS[0]

    return split_of


def obtain_tokenizer(config: DataConfig, folder: Path) -> Tokenizer:
    """Read the folder's tokenizer, or create it: a copy of the given file, or a BPE trained on the training split."""
    path = folder / TOKENIZER
    if path.exists():
        return load_tokenizer(path)
    choice = config.tokenizer
    if isinstance(choice, Bpe):
        pick = splitter(config.held_out_frac)
        reader = open_corpus(config)
        items = itertools.chain.from_iterable(reader.read(task) for task in range(reader.n_tasks))
        texts = (item.text for item in items if isinstance(item, Document) and pick(item.text) == SPLITS[0])
        sample: Iterator[str] = itertools.islice(texts, choice.sample_documents)
        if isinstance(config.corpus, Synthetic):  # with short windows the sample may lack the needle test's words
            sample = itertools.chain([wording.TASK + wording.NEEDLE + wording.QUESTION], sample)
        try:
            tokenizer = train_bpe(sample, choice.vocab_size)
        except DataError as error:
            raise DataError(why_empty(config)) from error  # or what was wrong with a file, which it reads again
    else:
        tokenizer = load_tokenizer(Path(choice.path), choice.eos)
    write_atomic(path, tokenizer.to_str().encode("utf-8"))
    return tokenizer
