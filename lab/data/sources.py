"""Whether the files that shards were made of are still the same; of a hub's data set, whether its commit is.

Each shard's manifest has the size and SHA-256 of the files that its task has read. Their times of modification are in
a hidden file of the folder, and are those before any task began, or of the last comparison. A file is hashed again only
if its time alone differs. Sources that are absent, as on a cluster to which shards were copied, are not compared.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from lab.core.command import show
from lab.core.errors import DataError, DiskError, first_line
from lab.core.files import FileEntry, read_object, sha256, write_json
from lab.data.config import DataConfig
from lab.data.corpora import open_corpus
from lab.data.shards import read_manifest, shards_in
from lab.data.text_files import root_of

INPUTS = "inputs.json"
TIMES = ".modified.json"  # of the sources, in nanoseconds by name
WAIT_S = 10.0  # for the hub
SHOWN = 3  # names in a message
PREPARE_AGAIN = "delete the folder and prepare again"
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


def local_root(config: DataConfig) -> Path | None:
    """Return the folder, or the file, that the names of a corpus's files begin at; None without local files."""
    path = getattr(config.corpus, "path", None)
    if path is None:
        return None
    root = root_of(path)
    return root.parent if config.dataset is not None and root.is_file() else root


def times_of(root: Path, names: Iterable[str]) -> dict[str, int]:
    return {name: (root / name).stat().st_mtime_ns for name in names}


def record_times(config: DataConfig, folder: Path, names: Iterable[str]) -> None:
    """Write the times of the sources before any of them is read."""
    root = local_root(config)
    if root is not None and not (folder / TIMES).exists():
        write_json(folder / TIMES, times_of(root, names))


def hash_sources(root: Path, before: Mapping[str, int]) -> dict[str, FileEntry]:
    """Hash the files that a task has read; `before` are their times of modification before that.

    Raises: DataError.
    """
    entries: dict[str, FileEntry] = {}
    for name, time in before.items():
        path = root / name
        entries[name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        if path.stat().st_mtime_ns != time:
            raise DataError(f"{path}: was changed while it was read; run the same command again")
    return entries


def refuse_other_inputs(folder: Path, inputs: dict[str, int] | dict[str, str]) -> None:
    """Refuse inputs with files that were added, removed or changed since the first task was done.

    Raises: DataError naming one of them.
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


def check_sources(config: DataConfig, folder: Path, others: list[str]) -> None:
    """Refuse shards of other sources than there are now, or say that they are accepted or not compared.

    `others` are further differences.

    Raises: DataError.
    """
    if config.embedded or config.corpus.plugin:
        return
    root = local_root(config)
    setting = f"data.corpus.path={getattr(config.corpus, 'path', None)}"
    if root is None:
        setting = f"data.corpus.repository={getattr(config.corpus, 'repository', None)}"
        differ = compare_commit(config, folder)
    elif not root.exists():
        show(f"data: {root} is not here, so that the shards are not compared with their sources")
        differ = []
    else:
        differ = compare_files(config, folder, root)
    differ = [*differ, *others]
    if not differ:
        return
    if root is not None and root.is_file():
        differ = [text.replace(". ", f"{root.name} ", 1) for text in differ]  # its name in a listing is "."
    more = f" and {len(differ) - SHOWN:,} more" if len(differ) > SHOWN else ""
    rule = f"{', '.join(differ[:SHOWN])}{more} since {folder} was prepared"
    if config.changed_sources == "accept":
        show(f"{setting}: {rule}; accepted by data.changed_sources")
        return
    remedy = "delete that folder and prepare again, or set data.changed_sources=accept to train on its shards"
    raise DataError(f"{setting}: {rule}; {remedy}")


def compare_files(config: DataConfig, folder: Path, root: Path) -> list[str]:
    """List the files that were added, removed or changed; a file of the same size and time is taken as the same."""
    recorded: dict[str, FileEntry] = {}
    for shard in shards_in(folder):
        recorded |= read_manifest(shard).get("inputs", {})
    try:
        now = open_corpus(config).listing.files
    except DataError as error:  # no file is left, or one cannot be read
        return [first_line(error).replace("; ", ", ")]
    sizes = {name: entry["bytes"] for name, entry in recorded.items()}
    if not recorded and config.upsample is None:  # shards of older versions
        sizes = read_object(folder / INPUTS, DataError, PREPARE_AGAIN)
    if not sizes:
        return []
    differ = [f"{name} was added" for name in sorted(now.keys() - sizes.keys())]
    differ += [f"{name} was removed" for name in sorted(sizes.keys() - now.keys())]
    both = sorted(now.keys() & sizes.keys())
    differ += [f"{name} has another size" for name in both if now[name] != sizes[name]]
    known: dict[str, int] = {}
    with suppress(DataError):  # all are hashed once
        known = read_object(folder / TIMES, DataError, "")
    times = times_of(root, [name for name in both if name in recorded and now[name] == sizes[name]])
    for name, time in times.items():
        if known.get(name) != time and sha256(root / name) != recorded[name]["sha256"]:
            differ.append(f"{name} was rewritten")
    if not differ and times != known:
        with suppress(OSError, DiskError):  # of a folder that cannot be written
            write_json(folder / TIMES, times)
    return differ


def compare_commit(config: DataConfig, folder: Path) -> list[str]:
    """Compare the commit that shards were made of with the newest one of the data set."""
    names = read_object(folder / INPUTS, DataError, PREPARE_AGAIN)
    before = {name.partition("/")[0] for name in names}
    repository = str(getattr(config.corpus, "repository", None))
    try:
        if any(os.environ.get(name, "0") not in ("", "0") for name in OFFLINE):
            raise OSError("offline")
        from huggingface_hub import HfApi

        now = HfApi().dataset_info(repository, timeout=WAIT_S).sha
    except Exception as error:  # the library raises many types for a network that is absent
        show(f"data: {repository} cannot be compared with the hub ({first_line(error)}); training goes on")
        return []
    return [] if before <= {str(now)} else [f"its commit was {min(before)[:8]} and is {str(now)[:8]},"]
