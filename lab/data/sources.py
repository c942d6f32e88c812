"""Comparison of shards with the files that they were made of or, for a data set of the hub, with its newest commit.

Each shard's manifest has the size and SHA-256 of the files that its task has read. Their times of modification are in
a hidden file of the folder; they are from before any task began, or from the last comparison. A file is hashed again
only if its time alone differs. Sources that are absent, as on a cluster to which shards were copied, are not compared.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from lab.core.command import show
from lab.core.errors import DataError, DiskError, first_line
from lab.core.files import FileEntry, read_object, sha256, write_json
from lab.data.config import DataConfig
from lab.data.corpora import open_corpus
from lab.data.shards import read_manifest, shards_in
from lab.data.text_files import Listing, find_root

INPUTS = "inputs.json"
BUILDER = "builder.json"  # what of the datasets library reads the inputs, with its options
TIMES = ".modified.json"  # of the sources, in nanoseconds by name
WAIT_S = 10.0  # for the hub
SHOWN = 3  # names in a message
PREPARE_AGAIN = "delete the folder and prepare again"


def read_times(root: Path, names: Iterable[str]) -> dict[str, int]:
    return {name: (root / name).stat().st_mtime_ns for name in names}


def record_times(listing: Listing, folder: Path) -> None:
    """Write the times of the sources before any of them is read."""
    if listing.root is not None and not (folder / TIMES).exists():
        write_json(folder / TIMES, read_times(listing.root, listing.files))


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


def check_inputs(folder: Path, inputs: dict[str, int] | dict[str, str]) -> None:
    """Record the inputs of all tasks at the first call, and reject other ones at a later call.

    Raises: DataError naming one that was added, removed or changed.
    """
    path = folder / INPUTS
    if not path.exists():
        write_json(path, inputs)
    before = read_object(path, DataError, PREPARE_AGAIN)
    changed = sorted(name for name in before.keys() | inputs.keys() if before.get(name) != inputs.get(name))
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


def check_sources(config: DataConfig, folder: Path, others: list[str]) -> None:
    """Reject shards whose sources have changed, or print that the changes are accepted or cannot be compared.

    `others` are further differences.

    Raises: DataError.
    """
    if config.is_generated or config.corpus.plugin:
        return
    path = getattr(config.corpus, "path", None)
    setting = f"data.corpus.path={path}"
    differences = others
    if path is None:
        repository = str(getattr(config.corpus, "repository", None))
        setting = f"data.corpus.repository={repository}"
        differences = [*compare_commit(repository, folder), *others]
    elif find_root(path).exists():
        differences = [*compare_files(config, folder), *others]
    else:
        show(f"data: {find_root(path)} is not here, so that the shards are not compared with their sources")
    if not differences:
        return
    rule = f"{', '.join(differences[:SHOWN])} ({len(differences):,} in all) since {folder} was prepared"
    if config.changed_sources == "accept":
        show(f"{setting}: {rule}; accepted by data.changed_sources")
        return
    fix = "delete that folder and prepare again, or set data.changed_sources=accept to train on its shards"
    raise DataError(f"{setting}: {rule}; {fix}")


def compare_files(config: DataConfig, folder: Path) -> list[str]:
    """List the files that were added, removed or changed; a file of the same size and time is taken as the same."""
    recorded: dict[str, FileEntry] = {}
    for shard in shards_in(folder):
        recorded |= read_manifest(shard).get("inputs", {})
    try:
        listing = open_corpus(config).listing
    except DataError as error:  # no file is left, or one cannot be read
        return [first_line(error).replace("; ", ", ")]
    root, now = listing.root, listing.files
    assert root is not None, "the names of files on disk begin at a root"
    if not recorded:  # shards of older versions, without hashes
        return []
    changes = [(name, "was added") for name in sorted(now.keys() - recorded.keys())]
    changes += [(name, "was removed") for name in sorted(recorded.keys() - now.keys())]
    same_size = []
    for name in sorted(now.keys() & recorded.keys()):
        if now[name] != recorded[name]["bytes"]:
            changes.append((name, "has another size"))
        else:
            same_size.append(name)
    known: dict[str, int] = {}
    with suppress(DataError):  # without recorded times all files are hashed once
        known = read_object(folder / TIMES, DataError, "")
    times = read_times(root, same_size)
    for name, time in times.items():
        if known.get(name) != time and sha256(root / name) != recorded[name]["sha256"]:
            changes.append((name, "was rewritten"))
    if not changes and times != known:
        with suppress(OSError, DiskError):  # a run may read a folder that it cannot write to
            write_json(folder / TIMES, times)
    # a corpus that is one file has the name "." in its listing
    return [f"{root.name if name == '.' else name} {change}" for name, change in changes]


def compare_commit(repository: str, folder: Path) -> list[str]:
    """Compare the commit that shards were made of with the newest commit of the data set."""
    # a name of the hub is COMMIT/PATH, and all files of a preparation are of one commit
    before = next(iter(read_object(folder / INPUTS, DataError, PREPARE_AGAIN)), "").partition("/")[0]
    try:
        from huggingface_hub import HfApi

        now = str(HfApi().dataset_info(repository, timeout=WAIT_S).sha)
    except Exception as error:  # the library raises many types for a network that is absent
        show(f"data: {repository} cannot be compared with the hub ({first_line(error)}); training goes on")
        return []
    return [] if before == now else [f"its commit was {before[:8]} and is {now[:8]},"]
