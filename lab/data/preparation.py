"""Tokenize a corpus to shards: task by task, in parallel, finished tasks skipped; without torch."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lab.bars import Bar
from lab.data import wording
from lab.data.closing import close_folder, read_closed, shards_in
from lab.data.config import Bpe, Conversations, DataConfig, Synthetic
from lab.data.conversations import Parts, marked, select
from lab.data.corpora import open_corpus, why_empty
from lab.data.derivation import NEIGHBOURS, RECORD, derive_task, inputs_of, plan, similarity_of_neighbours
from lab.data.executors import Executor, local
from lab.data.manifests import SPLITS, check_shard, read_manifest, read_manifests
from lab.data.segments import index_documents
from lab.data.shards import ShardWriter, token_dtype
from lab.data.tasks import remove_marks, run_owned, task_name
from lab.data.text_files import Document
from lab.data.tokenizer import EOS, load_tokenizer, special_ends, train_bpe
from lab.errors import DataError
from lab.files import read_object, remove_leftovers, temporary_of, write_atomic, write_json
from lab.lock import NAME, locked

BATCH_DOCUMENTS = 256
HASH_BYTES = 8
INPUTS = "inputs.json"
PREPARE_AGAIN = "delete the folder and prepare again"
TOKENIZER = "tokenizer.json"

RunTask = Callable[[Any], dict[str, Any]]  # a task to its manifest


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus: its folder and its contents."""

    folder: Path
    documents: dict[str, int]
    tokens: dict[str, int]
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

    Derived shards are complete without their base, but invalid if the base has changed.

    Raises: DataError for shards of other settings.
    """
    folder = shard_folder(config)
    closed = read_closed(folder)
    if closed is None:
        return False
    if closed.get("identity") != json.loads(json.dumps(config.shard_identity())):
        raise DataError(f"{folder}: holds the shards of other settings, see its prepared.json; {PREPARE_AGAIN}")
    if not all((folder / task_name(task)).exists() for task in range(closed["tasks"])):
        return False
    if config.base is None or not is_prepared(config.base):
        return True
    return read_object(folder / INPUTS, DataError, PREPARE_AGAIN) == inputs_of(shard_folder(config.base))


def prepare(
    config: DataConfig,
    *,
    workers: int = 1,
    tasks: Sequence[int] | None = None,
    progress: bool = True,
    execute: Executor | None = None,
) -> Prepared:
    """Run the missing tasks of tokenizing and deriving, and return a summary of all tasks.

    Tasks run in `workers` processes of this machine, or where `execute` runs them. `tasks` restricts this call to some
    of the tasks, for job arrays; the last one to finish writes prepared.json. If shards are to be derived and some of
    the base are still missing, the summary is that of the base.

    Raises: DataError for an empty corpus or unreadable input.
    """
    folder = shard_folder(config)
    if config.base is not None and is_prepared(config):  # the base may have been deleted
        index_documents(folder, config.window)
        return summarise(folder)
    if config.base is not None and not is_prepared(config.base):
        base = prepare(config.base, workers=workers, tasks=tasks, progress=progress, execute=execute)
        if not is_prepared(config.base):
            return base
    run, jobs = begin(config, folder) if config.base is None else begin_derived(config, config.base, folder, progress)
    todo = [(task, jobs[task]) for task in (range(len(jobs)) if tasks is None else tasks)]
    n_left = len(undone(folder, todo))
    with Bar(total=n_left, desc=f"prepare {config.shard_name}", disable=not (progress and n_left)) as bar:
        for wait in (False, True):  # tasks that another process runs come last
            for done in (execute or local(workers))(partial(run_owned, run, folder, wait), undone(folder, todo)):
                bar.update(done)
    prepared = summarise(folder)
    if len(shards_in(folder)) < len(jobs):
        return prepared
    if not prepared.tokens["train"]:
        shutil.rmtree(folder)
        raise DataError(why_empty(config))
    if config.order == "related":
        write_json(folder / NEIGHBOURS, similarity_of_neighbours(folder))
    close_folder(folder, config.shard_identity())
    index_documents(folder, config.window)
    return prepared


def undone(folder: Path, tasks: Sequence[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """List the tasks, each with its number, that have no shard yet."""
    return [task for task in tasks if not (folder / task_name(task[0])).exists()]


def begin(config: DataConfig, folder: Path) -> tuple[RunTask, Sequence[Any]]:
    """Prepare the folder of a corpus and return the function that runs a task, and the tasks."""
    reader = open_corpus(config)
    with folder_of_tasks(config, folder):
        eos = end_of_document(config, obtain_tokenizer(config, folder))
        refuse_other_inputs(folder, reader.inputs())
    return partial(run_task, config, folder, eos), range(reader.n_tasks)


def begin_derived(config: DataConfig, base: DataConfig, folder: Path, progress: bool) -> tuple[RunTask, Sequence[Any]]:
    """Prepare the folder of derived shards and return the function that runs a task, and the tasks."""
    source, related = shard_folder(base), config.order == "related"
    with folder_of_tasks(config, folder):
        refuse_other_inputs(folder, inputs_of(source))
        jobs, record = plan(source, config.upsample, related=related, progress=progress)
    write_atomic(folder / TOKENIZER, (source / TOKENIZER).read_bytes())
    if record is not None:
        write_json(folder / RECORD, record)
    return partial(derive_task, folder), jobs


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
            remove_leftovers(folder)
            remove_marks(folder)
            yield
    except DataError:
        if not any(folder.glob("task-*")) and not any(folder.glob(".task-*")):
            shutil.rmtree(folder)
        raise


def refuse_other_inputs(folder: Path, inputs: Mapping[str, int | str]) -> None:
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
    """Hash every file of every shard against its manifest, and these against prepared.json.

    Raises: DataError naming the first file that differs.
    """
    for shard, manifest in Bar(read_manifests(shard_folder(config)).items(), desc="verify"):
        check_shard(shard, manifest, hashes=True)


def run_task(config: DataConfig, folder: Path, eos: int, task: int) -> dict[str, Any]:
    """Tokenize one task into one shard."""
    tokenizer = load_tokenizer(folder)
    temporary = temporary_of(folder / task_name(task))
    marks = config.tags or isinstance(config.corpus, Conversations)
    writer = ShardWriter(temporary, token_dtype(tokenizer.get_vocab_size()), marks_scored=marks)
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


def splitter(held_out_frac: float) -> Callable[[str], str]:
    """Return the function that assigns a text to a split by its hash, so that duplicates share a split."""
    bound = int(held_out_frac * 2 ** (8 * HASH_BYTES))

    def split_of(text: str) -> str:
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
    skips = sum((Counter(manifest["skips"]) for manifest in manifests), Counter[str]())
    total = {
        unit: {split: sum(m["splits"][split][unit] for m in manifests) for split in SPLITS}
        for unit in ("documents", "tokens")
    }
    return Prepared(folder, total["documents"], total["tokens"], dict(skips))
