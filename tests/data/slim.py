"""Small corpora of SlimPajama's form with several sources, and their shards read back from the bytes."""

import json

import numpy as np
import pyarrow

from lab.data.config import DataConfig, Slimpajama, Upsample
from lab.data.preparation import shard_folder
from tests.data.stores import read_shard

SOURCES = {
    "RedPajamaC4": (4, 30),
    "RedPajamaBook": (40, 200),
    "RedPajamaGithub": (2, 120),
    "RedPajamaArXiv": (101, 130),
}
LONG, SHARE = 100, 0.9
TASKS = 3


def slim_corpus(folder, sources=SOURCES, documents=60, files=TASKS, seed=0):
    """Write files of SlimPajama's form; no two documents are equal."""
    folder.mkdir()
    generator = np.random.default_rng(seed)
    for file in range(files):
        rows = []
        for number in range(documents):
            name = list(sources)[number % len(sources)]
            length = int(generator.integers(*sources[name], endpoint=True))
            text = " ".join(f"w{n}" for n in generator.integers(500, size=length))
            rows.append({"text": text, "meta": {"redpajama_set_name": name}})
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"part{file}.jsonl.zst").write_bytes(pyarrow.compress(lines.encode(), codec="zstd", asbytes=True))


def slim(place, tokenizer, **settings):
    values = {"upsample": Upsample(share=SHARE), "held_out_frac": 0.1, **settings}
    corpus = Slimpajama(path=str(place / "corpus"))
    return DataConfig(corpus=corpus, tokenizer=tokenizer, window=32, folder=str(place / "shards"), **values)


def documents(config, split="train"):
    """Read (source, tokens) of all documents of a prepared config, shard by shard, from the bytes."""
    folders = sorted(path for path in shard_folder(config).glob("task-*"))
    return [[(source, tuple(ids)) for ids, source in read_shard(folder, split)] for folder in folders]
