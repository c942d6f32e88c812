"""Prepare a corpus: its shards task by task, in parallel, finished tasks skipped; without torch."""

import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lab.core import files, locks
from lab.core.command import Bar, show
from lab.core.errors import ConfigError, DataError
from lab.core.launch import cores, in_processes
from lab.data import derivation, shards
from lab.data.config import DataConfig, Text
from lab.data.corpora import open_corpus
from lab.data.shards import Split, task_name
from lab.data.sources import BUILDER, INPUTS, PREPARE_AGAIN, check_inputs, check_sources, read_hub_listing
from lab.data.text_files import describe_skipped
from lab.data.tokenizer import TOKENIZER, end_of_document, obtain_tokenizer, split_documents
from lab.data.tokenizing import run_task

SMALL_BYTES = 100 * 10**6  # of text files that a run prepares itself, in a minute or so
RunTask = Callable[[int], shards.Manifest]
Check = Callable[[Path], object]  # rejects the tokenizer of a folder, for instance because it has too few tokens


class Prepared(NamedTuple):
    """A prepared corpus: its folder and its contents."""

    folder: Path
    documents: Counter[Split]
    tokens: Counter[Split]
    skips: Counter[str]

    @property
    def summary(self) -> str:
        return f"{self.folder}: {self.counts}"

    @property
    def counts(self) -> str:
        """Describe in one line the contents and the dropped documents."""
        text = f"{self.documents['train']:,} documents, {self.tokens['train']:,} tokens to train on"
        text += f", {self.tokens['held_out']:,} held out"
        if self.skips:
            text += f"; skipped: {describe_skipped(self.skips)}"
        return text


def shard_folder(config: DataConfig) -> Path:
    """Return the folder of a config's shards, of a mixture that of its first corpus."""
    return Path(config.folder) / config.parts[0].shard_name


def check_prepared(config: DataConfig, *, held_out: bool = False) -> None:
    """Reject a corpus that must be prepared first; every process checks, so that none waits for the others.

    With `held_out`, a document must be held out, in the shards or, before they exist, in the texts.

    Raises: DataError, ConfigError for a corpus without a held-out document.
    """
    config, *others = config.parts
    for other in others:
        check_prepared(other, held_out=held_out)
    folder = shard_folder(config)
    path = getattr(config.corpus, "path", None)
    if not config.is_generated:
        shards.read_manifests(folder)
        is_ready = is_prepared(config)
        if not is_ready and path is not None:
            listing = open_corpus(config).listing  # which also rejects a wrong path
            is_ready = isinstance(config.corpus, Text) and sum(listing.files.values()) <= SMALL_BYTES
        if not is_ready:
            raise DataError(
                f"data.corpus.name={config.corpus.name}: not prepared in {folder}; run probe-lab prepare with the same "
                "config first"
            )
    if not held_out:
        return
    documents = Counter[Split]()
    if is_prepared(config):
        documents = summarise(folder).documents
    else:
        for _, split in split_documents(config, open_corpus(config)):
            documents[split] += 1
            if split == "held_out":
                break
    if documents["train"] and not documents["held_out"]:
        raise ConfigError(
            f"data.held_out_frac={config.held_out_frac}: holds out none of the {documents['train']:,} documents of "
            f"corpus {config.corpus.name} ({path or 'no path'}), and probes need one; raise it, set probe to null, or "
            "give more documents (a line of .jsonl is one, or another file)"
        )


def prepare_missing(config: DataConfig, check: Check | None = None) -> None:
    """Prepare generated corpora and small texts if needed; `check` may reject the tokenizer before any task runs.

    Raises: DataError for any other corpus that has not been prepared.
    """
    check_prepared(config)
    for part in config.parts:
        if is_prepared(part):
            check_sources(part, shard_folder(part))
            continue
        if not part.is_generated:
            show(f"data: not prepared yet; preparing {shard_folder(part)}")
        prepare(part, workers=cores(), check=check)


def is_prepared(config: DataConfig) -> bool:
    """Return whether every task of the corpus is done: prepared.json exists, and so does every shard.

    Upsampled shards are complete without their base, but invalid if the base has changed.

    Raises: DataError for shards of other settings.
    """
    folder = shard_folder(config)
    record = shards.read_prepared(folder)
    if record is None:
        return False
    if record["name"] != config.shard_name:
        raise DataError(f"{folder}: contains the shards of other settings, see its prepared.json; {PREPARE_AGAIN}")
    if len(shards.shards_in(folder)) < record["tasks"]:
        return False  # a shard has been deleted to be made again
    if config.base is None or not is_prepared(config.base):
        return True
    inputs = files.read_object(folder / INPUTS, DataError, PREPARE_AGAIN)
    return inputs == derivation.hash_manifests(shard_folder(config.base))


def prepare(
    config: DataConfig,
    *,
    workers: int = 1,
    tasks: slice = slice(None),
    progress: bool = True,
    check: Check | None = None,
) -> Prepared:
    """Run the missing tasks of tokenizing and upsampling in `workers` processes, and return a summary of all tasks.

    `tasks` restricts this call to a slice of the tasks, for job arrays; the last to finish writes prepared.json. If
    shards are to be upsampled and some of the base are still missing, the summary is that of the base.

    Raises: DataError for an empty corpus or unreadable input, ConfigError if the folder cannot be written.
    """
    folder = shard_folder(config)
    if not config.is_generated and is_prepared(config):  # the base of upsampled shards may have been deleted
        shards.read_manifests(folder)  # compares names and sizes of the shards, too
        check_sources(config, folder)
        return summarise(folder)
    if config.base is not None and not is_prepared(config.base):
        base = prepare(config.base, workers=workers, tasks=tasks, progress=progress, check=check)
        if not is_prepared(config.base):
            return base
    with files.writing(f"data.folder={config.folder}", "folder"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        # the first of several calls lists the corpus and trains the tokenizer, which the others read
        with locks.locked(folder / locks.LOCK_NAME, wait=True):
            run, n_tasks = begin(config, folder)
        if check is not None:  # before the tasks, which may take hours
            check(folder)
    except (ConfigError, DataError):
        # leave no folder of settings that cannot be prepared, unless other processes work in it
        if not any(folder.glob("*task-*")):
            shutil.rmtree(folder)
        raise
    undone = [task for task in range(n_tasks)[tasks] if not (folder / task_name(task)).exists()]
    with Bar(total=len(undone), desc=f"prepare {config.shard_name}", disable=not progress) as bar:
        in_processes(partial(run_owned, run, folder), undone, workers, bar.update)
    prepared = summarise(folder)
    if len(shards.shards_in(folder)) < n_tasks:
        return prepared  # other calls run the missing tasks
    if not prepared.tokens["train"]:
        shutil.rmtree(folder)
        raise DataError(
            f"data.corpus: empty, no document has text to train on ({prepared.counts}); name its field `text`, check "
            "its path, or lower data.held_out_frac"
        )
    # calls that end together write the same record one after the other
    with locks.locked(folder / locks.LOCK_NAME, wait=True):
        close_folder(config, folder)
    return prepared


def begin(config: DataConfig, folder: Path) -> tuple[RunTask, int]:
    """Write what all tasks need, and return the function that runs a task by its number, and how many there are."""
    if config.upsample is None or config.base is None:
        reader = open_corpus(config, read_hub_listing(config, folder))
        listing = reader.listing
        if listing.skipped.total():
            show(f"data: files read: {len(listing.files):,}; skipped: {describe_skipped(listing.skipped)}")
        # before the list of inputs, whose presence means that the listing is complete
        if listing.module and not (folder / INPUTS).exists():
            files.write_json(folder / BUILDER, {"module": listing.module, "options": listing.options})
        check_inputs(folder, listing.files, listing.root)
        tokenizer = obtain_tokenizer(config, folder, reader)
        run = partial(run_task, config, folder, end_of_document(config, tokenizer), listing)
        return run, reader.n_tasks
    source = shard_folder(config.base)
    check_inputs(folder, derivation.hash_manifests(source))
    plan, rows = derivation.plan_upsampling(source, config.upsample)
    files.write_atomic(folder / TOKENIZER, (source / TOKENIZER).read_bytes())
    files.write_json(folder / derivation.RECORD, {"sources": rows})
    return partial(derivation.derive_task, folder, config.shard_name, plan), len(plan.shards)


def run_owned(run: RunTask, folder: Path, task: int) -> None:
    """Run one task under its lock, unless another process has done it meanwhile.

    Raises: DiskError.
    """
    path = folder / task_name(task)
    with locks.locked(folder / f".{path.name}.lock", wait=True), files.on_disk(path):
        try:
            if not path.exists():
                run(task)
        finally:
            # this process holds the task's lock, so that temporary folders of the task are its own or of killed ones
            for attempt in folder.glob(f".{path.name}.tmp*"):
                files.delete(attempt)


def close_folder(config: DataConfig, folder: Path) -> None:
    """Write prepared.json after the last shard, and delete the leftovers of killed processes."""
    files.delete_leftovers(folder)
    for lock in folder.glob(".task-*.lock*"):
        files.delete(lock)
    records = files.build_manifest(folder, "[!.]*.json")
    records.pop(shards.PREPARED, None)
    record = {
        "name": config.shard_name,
        "identity": config.shard_identity(),
        "tasks": len(shards.shards_in(folder)),
        "files": records,
    }
    files.write_json(folder / shards.PREPARED, record)


def summarise(folder: Path) -> Prepared:
    """Sum the manifests of a folder's shards."""
    prepared = Prepared(folder, Counter(), Counter(), Counter())
    for path in shards.shards_in(folder):
        manifest = shards.read_shard_manifest(path)
        prepared.skips.update(manifest["skips"])
        for split, counts in manifest["splits"].items():
            prepared.documents[split] += counts["documents"]
            prepared.tokens[split] += counts["tokens"]
    return prepared
