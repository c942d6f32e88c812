"""Tokenize a corpus to shards: task by task, in parallel, finished tasks skipped; without torch."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lab.bars import Bar
from lab.data import wording
from lab.data.config import Bpe, Conversations, DataConfig, Synthetic
from lab.data.conversations import Parts, marked, select
from lab.data.corpora import open_corpus, why_empty
from lab.data.derivation import RECORD, derive_task, inputs_of, plan
from lab.data.manifest import (
    SPLITS,
    Manifest,
    Split,
    check_hashes,
    close_folder,
    read_manifest,
    read_manifests,
    read_prepared,
    shards_in,
    task_name,
)
from lab.data.segments import index_documents
from lab.data.shards import ShardWriter, token_dtype
from lab.data.text_files import Document
from lab.data.tokenizer import EOS, load_tokenizer, special_ends, train_bpe
from lab.errors import DataError, InUse
from lab.files import on_disk, read_object, remove, temporary_of, write_atomic, write_json
from lab.lock import NAME, locked

BATCH_DOCUMENTS = 256
HASH_BYTES = 8
INPUTS = "inputs.json"
PREPARE_AGAIN = "delete the folder and prepare again"
TOKENIZER = "tokenizer.json"

RunTask = Callable[[Any], Manifest]


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus: its folder and its contents."""

    folder: Path
    documents: dict[Split, int]
    tokens: dict[Split, int]
    skips: dict[str, int]

    @property
    def summary(self) -> str:
        """Describe in one line the contents and what was left out."""
        left_out = ", ".join(f"{n:,} {reason}" for reason, n in sorted(self.skips.items()))
        return (
            f"{self.folder}: {self.documents['train']:,} documents, {self.tokens['train']:,} tokens to train on, "
            f"{self.tokens['held_out']:,} held out"
            + ("" if self.documents["held_out"] else " (no document; to have some, raise data.held_out_frac)")
            + (f"; left out: {left_out}" if left_out else "")
        )


def shard_folder(config: DataConfig) -> Path:
    """Return the folder that holds a config's shards."""
    return Path(config.folder) / config.shard_name


def is_prepared(config: DataConfig) -> bool:
    """Return whether every task of the corpus is done: prepared.json exists, and so does every shard.

    Upsampled shards are complete without their base, but invalid if the base has changed.

    Raises: DataError for shards of other settings.
    """
    folder = shard_folder(config)
    closed = read_prepared(folder)
    if closed is None:
        return False
    if closed["identity"] != json.loads(json.dumps(config.shard_identity())):
        raise DataError(f"{folder}: holds the shards of other settings, see its prepared.json; {PREPARE_AGAIN}")
    if not all((folder / task_name(task)).exists() for task in range(closed["tasks"])):
        return False
    if config.base is None or not is_prepared(config.base):
        return True
    return read_object(folder / INPUTS, DataError, PREPARE_AGAIN) == inputs_of(shard_folder(config.base))


def prepare(
    config: DataConfig, *, workers: int = 1, tasks: Sequence[int] | None = None, progress: bool = True
) -> Prepared:
    """Run the missing tasks of tokenizing and upsampling in `workers` processes, and return a summary of all tasks.

    `tasks` restricts this call to some of the tasks, for job arrays; the last one to finish writes prepared.json. If
    shards are to be upsampled and some of the base are still missing, the summary is that of the base.

    Raises: DataError for an empty corpus or unreadable input.
    """
    folder = shard_folder(config)
    if config.base is not None and is_prepared(config):  # the base may have been deleted
        index_documents(folder, config.window)
        return summarise(folder)
    if config.base is not None and not is_prepared(config.base):
        base = prepare(config.base, workers=workers, tasks=tasks, progress=progress)
        if not is_prepared(config.base):
            return base
    run, jobs = begin(config, folder) if config.base is None else begin_derived(config, config.base, folder, progress)
    todo = {task: jobs[task] for task in (range(len(jobs)) if tasks is None else tasks)}
    undone = {task: job for task, job in todo.items() if not (folder / task_name(task)).exists()}
    with Bar(total=len(undone), desc=f"prepare {config.shard_name}", disable=not (progress and undone)) as bar:
        for wait in (False, True):  # tasks that another process runs come last
            undone = {task: job for task, job in undone.items() if not (folder / task_name(task)).exists()}
            for done in in_processes(partial(run_owned, run, folder, wait), list(undone.items()), workers):
                bar.update(done)
    prepared = summarise(folder)
    if len(shards_in(folder)) < len(jobs):
        return prepared
    if not prepared.tokens["train"]:
        shutil.rmtree(folder)
        raise DataError(why_empty(config))
    close_folder(folder, config.shard_name, config.shard_identity())
    index_documents(folder, config.window)
    return prepared


def in_processes(run: Callable[[Any], bool], todo: Sequence[Any], workers: int) -> Iterator[bool]:
    """Run tasks in this process or in worker processes, and yield what they return as they finish."""
    if workers <= 1 or len(todo) <= 1:
        yield from map(run, todo)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(todo)), mp_context=context, initializer=begin_worker) as pool:
        try:
            for future in as_completed([pool.submit(run, task) for task in todo]):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def begin_worker() -> None:
    """End a worker process with its parent, and limit its tokenizers library to one thread; it has no other setting."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a worker only"
    threading.Thread(target=end_after, args=(parent,), daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def end_after(parent: multiprocessing.process.BaseProcess) -> None:
    """Wait for the end of the parent, however it ends, and end this process."""
    parent.join()
    os._exit(1)


def run_owned(run: RunTask, folder: Path, wait: bool, task: tuple[int, Any]) -> bool:
    """Run one task as its owner, unless another process has done it; return False where one still runs it.

    Such a process is waited for with `wait`, and its task taken over if it ends early.

    Raises: DiskError.
    """
    number, job = task
    name = task_name(number)
    try:
        with locked(folder / f".{name}.lock", wait=wait), on_disk(folder / name):
            try:
                if not (folder / name).exists():
                    remove_all(folder, name)
                    run(job)
            except BaseException:
                remove_all(folder, name)
                raise
    except InUse:
        return False
    return True


def remove_all(folder: Path, name: str) -> None:
    """Delete what attempts at a task have left half written."""
    for leftover in folder.glob(f".{name}.tmp*"):
        remove(leftover)


def begin(config: DataConfig, folder: Path) -> tuple[RunTask, Sequence[Any]]:
    """Prepare the folder of a corpus and return the function that runs a task, and the tasks."""
    reader = open_corpus(config)
    with folder_of_tasks(config, folder):
        eos = end_of_document(config, obtain_tokenizer(config, folder))
        refuse_other_inputs(folder, reader.inputs())
    return partial(run_task, config, folder, eos), range(reader.n_tasks)


def begin_derived(config: DataConfig, base: DataConfig, folder: Path, progress: bool) -> tuple[RunTask, Sequence[Any]]:
    """Prepare the folder of upsampled shards and return the function that runs a task, and the tasks."""
    assert config.upsample is not None, "shards with a base are upsampled"
    source = shard_folder(base)
    with folder_of_tasks(config, folder):
        refuse_other_inputs(folder, inputs_of(source))
        jobs, record = plan(source, config.upsample, progress=progress)
    write_atomic(folder / TOKENIZER, (source / TOKENIZER).read_bytes())
    write_json(folder / RECORD, record)
    return partial(derive_task, folder, config.shard_name), jobs


@contextmanager
def folder_of_tasks(config: DataConfig, folder: Path) -> Iterator[None]:
    """Create the shards' folder and own it, and remove it if the block fails before any task is done or begun.

    Raises: DataError if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"data.folder={config.folder}: cannot be created ({reason}); name another folder") from error
    try:
        with locked(folder / NAME, wait=True):
            for name in (TOKENIZER, INPUTS):
                remove_all(folder, name)
            for mark in folder.glob(".task-*.lock"):  # of processes that were killed
                with suppress(InUse), locked(mark):
                    pass
            yield
    except DataError:
        if not any(folder.glob("task-*")) and not any(folder.glob(".task-*")):
            shutil.rmtree(folder)
        raise


def refuse_other_inputs(folder: Path, inputs: dict[str, int] | dict[str, str]) -> None:
    """Refuse inputs with files that were added, removed or changed since the first task was done.

    Raises: DataError naming one of them.
    """
    path = folder / INPUTS
    if not path.exists():
        write_json(path, inputs)
        return
    before = read_object(path, DataError, PREPARE_AGAIN)
    changed = sorted(name for name in before.keys() | inputs.keys() if before.get(name) != inputs.get(name))
    if changed:
        raise DataError(
            f"{folder}: {changed[0]} and {len(changed) - 1} others were added, removed or changed since preparation "
            "began; delete the folder and prepare again"
        )


def verify(config: DataConfig) -> None:
    """Hash every file of every shard against its manifest.

    Raises: DataError naming the first file that differs.
    """
    for shard, manifest in Bar(read_manifests(shard_folder(config)).items(), desc="verify"):
        check_hashes(shard, manifest)


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


def end_of_document(config: DataConfig, tokenizer: Tokenizer) -> int:
    """Return the id of the token that ends every document.

    Raises: DataError when the tokenizer has no such token.
    """
    token = EOS if isinstance(config.tokenizer, Bpe) else config.tokenizer.eos
    index: int | None = tokenizer.token_to_id(token)
    if index is None:
        raise DataError(f"data.tokenizer.eos={token}: the tokenizer has no such token; use one of its tokens")
    return index


def summarise(folder: Path) -> Prepared:
    """Sum the manifests of a folder's shards."""
    manifests = [read_manifest(path) for path in shards_in(folder)]
    documents = {split: sum(m["splits"][split]["documents"] for m in manifests) for split in SPLITS}
    tokens = {split: sum(m["splits"][split]["tokens"] for m in manifests) for split in SPLITS}
    skips = sum((Counter(m["skips"]) for m in manifests), Counter[str]())
    return Prepared(folder, documents, tokens, dict(skips))
