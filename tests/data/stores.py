"""Small token stores with known documents, and shards read back from the format that lab/data/shards.py documents."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from lab.core.errors import DataError
from lab.data.config import Bpe, DataConfig, Text
from lab.data.module import PackedData
from lab.data.packing import PackSettings, PackStream
from lab.data.shards import TokenStore, token_dtype
from lab.data.tokenizing import TokenShardWriter
from lab.masks import Causal
from tests import refusals

WORDS = ["alpha", "beta", "gamma", "delta", "Ärger", "三", "12", "é"]


def make_store(folder: Path, shards: list[list[list[int]]], vocab_size: int = 60_000) -> TokenStore:
    """Write a shard for each list of documents and open the training split."""
    for number, documents in enumerate(shards):
        writer = TokenShardWriter(folder / f"task-{number:05d}", token_dtype(vocab_size))
        for document in documents:
            writer.add("train", document, "made")
        writer.close()
    return TokenStore.open(folder, "train")


def refused(start, error=DataError):
    """Expect an error of one line."""
    return refusals.refused(start, error=error)


def stream_over(store, segments, stream=0, state=None, **settings):
    """Build a stream of packs, by default the only one and without look-ahead."""
    values = {"seed": 5, "look_ahead": 1, **settings}
    return PackStream(PackSettings(store=store, segments=segments, **values), stream, state)


def module_of(data, *, micro_batch_tokens, seed=1, n_streams=1, token_types=None, **settings):
    """Build the data module of a run with these settings."""
    train = SimpleNamespace(micro_batch_tokens=micro_batch_tokens, n_packs=n_streams, context_parallel=1)
    values = {"mask": Causal(), **dict.fromkeys(("skip", "evidence", "weights")), **settings}
    return PackedData(SimpleNamespace(data=data, run=SimpleNamespace(seed=seed), train=train, **values), token_types)


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """Read all files of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def numbered_documents(lengths: list[int]) -> list[list[int]]:
    """Make documents in which every token stands once: token t of the whole is t + 1."""
    ends = np.cumsum([0, *lengths])
    return [list(range(a + 1, b + 1)) for a, b in zip(ends, ends[1:])]


def drawn_lengths(seed: int, n: int, longest: int) -> list[int]:
    """Draw document lengths of 1 to `longest` tokens."""
    return np.random.default_rng(seed).integers(1, longest + 1, n).tolist()


def read_shard(folder: Path, split: str) -> list[tuple[list[int], str]]:
    """Read (token ids, source) of every document of one shard, from the bytes."""
    manifest = json.loads((folder / "manifest.json").read_text())
    tokens = np.frombuffer((folder / f"{split}.tokens.bin").read_bytes(), manifest["dtype"])
    ends = np.frombuffer((folder / f"{split}.ends.bin").read_bytes(), "<i8").tolist()
    owners = np.frombuffer((folder / f"{split}.sources.bin").read_bytes(), "<u4").tolist()
    assert len(ends) == len(owners), "one source for every document"
    starts = [0, *ends[:-1]]
    return [(tokens[a:b].tolist(), manifest["sources"][o]) for a, b, o in zip(starts, ends, owners)]


def sentence(number):
    """A text of 1 to 8 words that names its number."""
    return " ".join([*(WORDS[(number * k + k) % 8] for k in range(number % 8)), f"number {number}."])


def write_corpus(folder, files=3, rows=40):
    folder.mkdir(parents=True, exist_ok=True)
    texts = []
    for number in range(files):
        part = [sentence(rows * number + row) for row in range(rows)]
        lines = [json.dumps({"text": text}) for text in part]
        (folder / f"part{number}.jsonl").write_text("\n".join(lines))
        texts.append(part)
    return texts


def text_config(place, **settings):
    corpus = Text(path=str(place / "corpus"))
    values = {"tokenizer": Bpe(vocab_size=300), "held_out_frac": 0.1, "folder": str(place / "shards"), **settings}
    return DataConfig(corpus=corpus, window=16, **values)
