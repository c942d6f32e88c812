"""Prepare a corpus: its shards task by task, in parallel, finished tasks skipped; without torch."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lab.command import Bar
from lab.data.config import Bpe, DataConfig
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
from lab.data.tokenizer import EOS
from lab.data.tokenizing import TOKENIZER, obtain_tokenizer, run_task
from lab.errors import DataError, InUse
from lab.files import LOCK_NAME, locked, on_disk, read_object, remove, write_atomic, write_json, writing

INPUTS = "inputs.json"
PREPARE_AGAIN = "delete the folder and prepare again"
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
    record = read_prepared(folder)
    if record is None:
        return False
    if record["name"] != config.shard_name:
        raise DataError(f"{folder}: holds the shards of other settings, see its prepared.json; {PREPARE_AGAIN}")
    if not all((folder / task_name(task)).exists() for task in range(record["tasks"])):
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
    if config.base is not None:
        if is_prepared(config):  # the base may have been deleted
            index_documents(folder, config.window)
            return summarise(folder)
        if not is_prepared(config.base):
            base = prepare(config.base, workers=workers, tasks=tasks, progress=progress)
            if not is_prepared(config.base):
                return base
    with folder_of_tasks(config, folder):
        run, jobs = begin(config, folder, progress)
    undone = [(task, jobs[task]) for task in (range(len(jobs)) if tasks is None else tasks)]
    with Bar(total=len(undone), desc=f"prepare {config.shard_name}", disable=not progress) as bar:
        for wait in (False, True):  # tasks that another process runs come last
            undone = [(task, job) for task, job in undone if not (folder / task_name(task)).exists()]
            for done in in_processes(partial(run_owned, run, folder, wait), undone, workers):
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


@contextmanager
def folder_of_tasks(config: DataConfig, folder: Path) -> Iterator[None]:
    """Create the shards' folder and lock it, and remove it if the block fails before any task is done or begun.

    Raises: ConfigError if it cannot be written.
    """
    with writing(f"data.folder={config.folder}", "folder"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder / LOCK_NAME, wait=True):
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


def begin(config: DataConfig, folder: Path, progress: bool) -> tuple[RunTask, Sequence[Any]]:
    """Write what all tasks need, and return the function that runs a task, and the tasks."""
    if config.upsample is None or config.base is None:
        reader = open_corpus(config)
        eos = end_of_document(config, obtain_tokenizer(config, folder))
        refuse_other_inputs(folder, reader.inputs())
        return partial(run_task, config, folder, eos), range(reader.n_tasks)
    source = shard_folder(config.base)
    refuse_other_inputs(folder, inputs_of(source))
    jobs, record = plan(source, config.upsample, progress=progress)
    write_atomic(folder / TOKENIZER, (source / TOKENIZER).read_bytes())
    write_json(folder / RECORD, record)
    return partial(derive_task, folder, config.shard_name), jobs


def refuse_other_inputs(folder: Path, inputs: dict[str, int] | dict[str, str]) -> None:
    """Refuse inputs with files that were added, removed or changed since the first task was done.

    Raises: DataError naming one of them.
    """
    path = folder / INPUTS
    if not path.exists():
        write_json(path, inputs)
        return
    before: dict[str, Any] = read_object(path, DataError, PREPARE_AGAIN)
    changed = sorted(name for name in before.keys() | inputs.keys() if before.get(name) != inputs.get(name))
    if changed:
        raise DataError(
            f"{folder}: {changed[0]} and {len(changed) - 1} others were added, removed or changed since preparation "
            f"began; {PREPARE_AGAIN}"
        )


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

    def end_after() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_after, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def run_owned(run: RunTask, folder: Path, wait: bool, task: tuple[int, Any]) -> bool:
    """Run one task under its lock, unless it is done; return False where another process runs it.

    Such a process is waited for with `wait`, and its task taken over if it ends early.

    Raises: DiskError.
    """
    name, job = task_name(task[0]), task[1]
    try:
        with locked(folder / f".{name}.lock", wait=wait), on_disk(folder / name):
            remove_all(folder, name)
            try:
                if not (folder / name).exists():
                    run(job)
            finally:
                remove_all(folder, name)
    except InUse:
        return False
    return True


def remove_all(folder: Path, name: str) -> None:
    """Delete what attempts at a file or a shard have left half written."""
    for leftover in folder.glob(f".{name}.tmp*"):
        remove(leftover)


def verify(config: DataConfig) -> None:
    """Hash every file of every shard against its manifest.

    Raises: DataError naming the first file that differs.
    """
    for shard, manifest in Bar(read_manifests(shard_folder(config)).items(), desc="verify"):
        check_hashes(shard, manifest)


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
