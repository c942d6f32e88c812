"""Comparison of shards with the files that they were made of.

Each shard's manifest has the size and SHA-256 of the files that its task has read. Their times of modification are in
a hidden file of the folder; they are from before any task began, or from the last comparison. A file is hashed again
only if its time alone differs. Sources that are absent, as on a cluster to which shards were copied, are not compared.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from lab.core.command import show
from lab.core.errors import DataError, DiskError, first_line
from lab.core.files import FileEntry, file_error, read_object, sha256, write_json
from lab.data.config import DataConfig
from lab.data.corpora import open_corpus
from lab.data.shards import read_shard_manifest, shards_in
from lab.data.text_files import Listing, find_root
from lab.data.tokenizer import compare_tokenizer

INPUTS = "inputs.json"
BUILDER = "builder.json"  # what of the datasets library reads the inputs, with its options
TIMES = ".modified.json"  # of the sources, in nanoseconds by name
PREPARE_AGAIN = "delete the folder and prepare again"


def read_times(root: Path, names: Iterable[str]) -> dict[str, int]:
    return {name: (root / name).stat().st_mtime_ns for name in names}


def hash_sources(root: Path, before: Mapping[str, int]) -> dict[str, FileEntry]:
    """Hash the files that a task has read; `before` are their times of modification before that.

    Raises: DataError.
    """
    entries: dict[str, FileEntry] = {}
    for name, time in before.items():
        path = root / name
        entries[name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        # the tokens of a file that changed meanwhile may be of both versions
        if path.stat().st_mtime_ns != time:
            raise DataError(f"{path}: was changed while it was read; run the same command again")
    return entries


def check_inputs(folder: Path, inputs: dict[str, int] | dict[str, str], root: Path | None = None) -> None:
    """Record the inputs of all tasks, and their times below `root`, at the first call; reject others at a later call.

    Raises: DataError naming one that was added, removed or changed.
    """
    path = folder / INPUTS
    if not path.exists():
        if root is not None:
            write_json(folder / TIMES, read_times(root, inputs))
        write_json(path, inputs)
    before = read_object(path, DataError, PREPARE_AGAIN)
    changed = sorted({name for name, _ in before.items() ^ inputs.items()})
    if changed:
        raise DataError(
            f"{folder}: {changed[0]} and {len(changed) - 1} others were added, removed or changed since preparation "
            f"began; {PREPARE_AGAIN}"
        )


def read_hub_listing(config: DataConfig, folder: Path) -> Listing | None:
    """Read what an earlier call has listed on the hub, which limits requests; folders are listed by every call."""
    dataset = config.dataset
    if dataset is None or dataset.path is not None or not (folder / INPUTS).exists():
        return None
    builder = read_object(folder / BUILDER, DataError, PREPARE_AGAIN)
    inputs = read_object(folder / INPUTS, DataError, PREPARE_AGAIN)
    return Listing(inputs, module=builder["module"], options=builder["options"])


def check_sources(config: DataConfig, folder: Path) -> None:
    """Reject shards whose sources have changed, or print that the changes are accepted or cannot be compared.

    Raises: DataError.
    """
    if config.is_generated or config.corpus.plugin:
        return
    path = getattr(config.corpus, "path", None)
    changes = compare_tokenizer(config, folder)
    if path is not None and find_root(path).exists():
        changes += find_changed_files(config, folder)
    elif path is not None:
        show(f"data: {find_root(path)} is not here, so that the shards are not compared with their sources")
    if not changes:
        return
    rule = f"data.corpus.path={path}: {', '.join(changes[:3])} ({len(changes):,} in all) since {folder} was prepared"
    if config.changed_sources == "reject":
        raise DataError(
            f"{rule}; delete that folder and prepare again, or set data.changed_sources=accept to train on its shards"
        )
    show(f"{rule}; accepted by data.changed_sources")


def find_changed_files(config: DataConfig, folder: Path) -> list[str]:
    """List the files that were added, removed or changed; a file of the same size and time is taken as the same."""
    recorded: dict[str, FileEntry] = {}
    for shard in shards_in(folder):
        recorded |= read_shard_manifest(shard).get("inputs", {})
    try:
        listing = open_corpus(config).listing
    except DataError as error:  # no file is left, or one cannot be read
        return [first_line(error).replace("; ", ", ")]
    root = listing.root
    if root is None or not recorded:  # shards of older versions lack hashes
        return []
    known: dict[str, int] = {}
    with suppress(DataError):  # without recorded times all files are hashed once
        known = read_object(folder / TIMES, DataError, "")
    times = read_times(root, listing.files)
    changes = []
    for name in sorted(times.keys() | recorded.keys()):
        change: str | None = "was added"
        if name in recorded:
            change = file_error(root / name, recorded[name], hashes=known.get(name) != times.get(name))
        if change:  # a corpus that is one file has the name "." in its listing
            changes.append(f"{root.name if name == '.' else name} {change}")
    if not changes and times != known:
        with suppress(OSError, DiskError):  # a run may read a folder that it cannot write to
            write_json(folder / TIMES, times)
    return changes
