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
from lab.data.shards import read_shard_manifest, shards_in
from lab.data.text_files import Listing, find_root
from lab.data.tokenizer import compare_tokenizer

INPUTS = "inputs.json"
BUILDER = "builder.json"  # what of the datasets library reads the inputs, with its options
TIMES = ".modified.json"  # of the sources, in nanoseconds by name
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


def check_sources(config: DataConfig, folder: Path) -> None:
    """Reject shards whose sources have changed, or print that the changes are accepted or cannot be compared.

    Raises: DataError.
    """
    if config.is_generated or config.corpus.plugin:
        return
    path = getattr(config.corpus, "path", None)
    setting = f"data.corpus.path={path}"
    differences = compare_tokenizer(config, folder)
    if path is None:
        repository = str(getattr(config.corpus, "repository", None))
        setting = f"data.corpus.repository={repository}"
        differences += compare_commit(repository, folder)
    elif find_root(path).exists():
        differences += find_changed_files(config, folder)
    else:
        show(f"data: {find_root(path)} is not here, so that the shards are not compared with their sources")
    if not differences:
        return
    changes = f"{setting}: {', '.join(differences[:3])} ({len(differences):,} in all) since {folder} was prepared"
    if config.changed_sources == "reject":
        raise DataError(
            f"{changes}; delete that folder and prepare again, or set data.changed_sources=accept to train on its "
            "shards"
        )
    show(f"{changes}; accepted by data.changed_sources")


def find_changed_files(config: DataConfig, folder: Path) -> list[str]:
    """List the files that were added, removed or changed; a file of the same size and time is taken as the same."""
    recorded: dict[str, FileEntry] = {}
    for shard in shards_in(folder):
        recorded |= read_shard_manifest(shard).get("inputs", {})
    try:
        listing = open_corpus(config).listing
    except DataError as error:  # no file is left, or one cannot be read
        return [first_line(error).replace("; ", ", ")]
    root, sizes = listing.root, listing.files
    if root is None or not recorded:  # shards of older versions lack hashes
        return []
    known: dict[str, int] = {}
    with suppress(DataError):  # without recorded times all files are hashed once
        known = read_object(folder / TIMES, DataError, "")
    times = read_times(root, sizes)
    changes = []
    for name in sorted(sizes.keys() | recorded.keys()):
        change = ""
        if name not in recorded:
            change = "was added"
        elif name not in sizes:
            change = "was removed"
        elif sizes[name] != recorded[name]["bytes"]:
            change = "has another size"
        elif known.get(name) != times[name] and sha256(root / name) != recorded[name]["sha256"]:
            change = "was rewritten"
        if change:  # a corpus that is one file has the name "." in its listing
            changes.append(f"{root.name if name == '.' else name} {change}")
    if not changes and times != known:
        with suppress(OSError, DiskError):  # a run may read a folder that it cannot write to
            write_json(folder / TIMES, times)
    return changes


def compare_commit(repository: str, folder: Path) -> list[str]:
    """Compare the commit that shards were made of with the newest commit of the data set."""
    # a name of the hub is COMMIT/PATH, and all files of a preparation are of one commit
    before = next(iter(read_object(folder / INPUTS, DataError, PREPARE_AGAIN)), "").partition("/")[0]
    try:
        from huggingface_hub import HfApi

        now = str(HfApi().dataset_info(repository, timeout=10.0).sha)
    except Exception as error:  # the library raises many types for a network that is absent
        show(f"data: {repository} cannot be compared with the hub ({first_line(error)}); training goes on")
        return []
    return [] if before == now else [f"its commit was {before[:8]} and is {now[:8]},"]
