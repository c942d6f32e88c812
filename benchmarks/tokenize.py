"""Preparation against the tokenizer alone: a task of lab.prepare and `encode_batch_fast` on the same texts, in turns.

    python -m benchmarks.tokenize [--turns N] [--tokenizer FILE --eos TOKEN] [--text FILE] [--json FILE]

One process, whose tokenizer has one thread, as each worker of lab.prepare. The texts are the standard library's
sources, or those of FILE cut every 4,600 characters (the mean document of SlimPajama), in one .jsonl.zst file of
SlimPajama's form. The tokenizer is a BPE trained on them, or a tokenizer.json. `share` is the raw calls' CPU time over
that of the task, which also unpacks, reads, splits, hashes and writes. What every task begins with is apart.
"""

import json
import os
import tempfile
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from statistics import median

import pyarrow
import torch

from benchmarks import record
from benchmarks.timing import in_turns, ratio
from lab.data.config import Bpe, DataConfig, Slimpajama, Stdlib, TokenizerFile
from lab.data.corpora import TextDocument, open_corpus
from lab.data.preparation import shard_folder
from lab.data.text_files import read_texts
from lab.data.tokenizer import end_of_document, load_tokenizer, obtain_tokenizer
from lab.data.tokenizing import BATCH_DOCUMENTS, run_task

TEXTS, VOCABULARY = 4000, 4096
CHARACTERS = 4600  # of a document


def write_texts(place: Path, texts: list[str]) -> DataConfig:
    """Write texts to one file, and return the config of their corpus."""
    (place / "texts").mkdir(parents=True, exist_ok=True)
    rows = ({"text": text, "meta": {"redpajama_set_name": "RedPajamaC4"}} for text in texts)
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    name = f"{len(list((place / 'texts').iterdir())):05d}.jsonl.zst"
    (place / "texts" / name).write_bytes(pyarrow.compress(lines, codec="zstd", asbytes=True))
    return DataConfig(corpus=Slimpajama(path=str(place / "texts")), folder=str(place / "shards"))


def task_against_raw(config: DataConfig, texts: list[str], turns: int) -> record.Figures:
    """Time a task of the second file, the raw calls on its texts, and a task of the first, which has one word."""
    folder = shard_folder(config)
    folder.mkdir(parents=True)
    reader = open_corpus(config)
    eos = end_of_document(config, obtain_tokenizer(config, folder, reader))
    first, second = (replace(reader.listing, files={name: size}) for name, size in reader.listing.files.items())
    tokenizer = load_tokenizer(folder)
    batches = [texts[k : k + BATCH_DOCUMENTS] for k in range(0, len(texts), BATCH_DOCUMENTS)]
    calls = {
        "raw": lambda: [tokenizer.encode_batch_fast(batch) for batch in batches],
        "task": lambda: run_task(config, folder, eos, second, 0),
        "start": lambda: run_task(config, folder, eos, first, 0),
    }
    spent = in_turns(calls, torch.device("cpu"), turns)
    raw, task, start = (spent[name].cpu_s for name in ("raw", "task", "start"))
    tokens = sum(size["tokens"] for size in run_task(config, folder, eos, second, 0)["splits"].values())
    start_s, megabytes = median(start), sum(len(text.encode()) for text in texts) / 1e6
    task_s = median(task) - start_s
    return {
        "documents": len(texts),
        "tokens": tokens,
        "task_s": task_s,
        "raw_s": median(raw),
        "start_s": start_s,
        "share": ratio(raw, [seconds - start_s for seconds in task]),
        "tokens_per_s": tokens / task_s,
        "mb_per_s": megabytes / task_s,
    }


def main() -> None:
    """Print the figures."""
    options = record.read_options(__doc__, turns=5, tokenizer="", text="", eos="<|end_of_text|>")
    log = record.Log("tokenize", options.json)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    chosen: Bpe | TokenizerFile = Bpe(vocab_size=VOCABULARY)
    if options.tokenizer:
        chosen = TokenizerFile(path=options.tokenizer, eos=options.eos)
    if not options.text:
        reader = open_corpus(DataConfig(corpus=Stdlib()))
        items = chain.from_iterable(reader.read(task) for task in range(reader.n_tasks))
        texts = list(islice((item.text for item in items if isinstance(item, TextDocument)), TEXTS))
    else:
        whole = "\n".join(read_texts(Path(options.text), "--text"))
        texts = [whole[start : start + CHARACTERS] for start in range(0, len(whole), CHARACTERS)]
    with tempfile.TemporaryDirectory() as place:
        write_texts(Path(place) / "whole", ["word"])
        written = write_texts(Path(place) / "whole", texts)
        config = DataConfig(corpus=written.corpus, folder=written.folder, tokenizer=chosen)
        case = f"{Path(options.tokenizer).name or 'BPE'}, {'text' if options.text else 'code'}"
        figures = task_against_raw(config, texts, options.turns)
        print(case, ", ".join(f"{name} {value:,.4g}" for name, value in figures.items()))
        log.add("task", case, figures)


if __name__ == "__main__":
    main()
