"""Shards copied to a local disk, once for each node: complete shards are kept, and a copy is hashed."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab.data.closing import PREPARED
from lab.data.config import DataConfig
from lab.data.manifests import check_shard, read_manifests
from lab.data.preparation import shard_folder
from lab.errors import DataError, DiskError
from lab.files import (
    disk_fault,
    free_bytes,
    on_disk,
    publish_folder,
    remove,
    remove_leftovers,
    temporary_of,
    write_atomic,
    writing,
)
from lab.lock import NAME, locked

COPIES = 4  # shards copied at a time, as one stream does not use up a network file system


def staged_folder(config: DataConfig) -> Path:
    """Return the folder that a run reads its shards from."""
    folder = shard_folder(config)
    return folder if config.stage_to is None else Path(config.stage_to).absolute() / folder.name


def stage(config: DataConfig) -> None:
    """Copy the shards to data.stage_to, those that are not there yet; another process that copies is waited for.

    Raises: DiskError, DataError for a shard that is not what its manifest records, ConfigError for a folder that cannot
        be written.
    """
    source, target = shard_folder(config), staged_folder(config)
    if source.absolute() == target:
        return
    with writing(f"data.stage_to={config.stage_to}", "folder"):
        target.mkdir(parents=True, exist_ok=True)
    with locked(target / NAME, wait=True):
        remove_leftovers(target)
        missing = {path: m for path, m in read_manifests(source).items() if not is_copied(path, m, target / path.name)}
        needed = sum(file["bytes"] for manifest in missing.values() for file in manifest["files"].values())
        if needed > free_bytes(target):
            raise DiskError(f"data.stage_to={config.stage_to}: {disk_fault(target, needed, 'before copying')}")
        with ThreadPoolExecutor(COPIES) as pool:
            copies = [pool.submit(copy_shard, path, m, target / path.name) for path, m in missing.items()]
            try:
                for copy in copies:
                    copy.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        for path in sorted(source.glob("[!.]*.json"), key=lambda path: path.name == PREPARED):  # which comes last
            write_atomic(target / path.name, path.read_bytes())


def is_copied(shard: Path, manifest: dict[str, Any], copy: Path) -> bool:
    """Return whether a copy has the manifest of its shard, and files of the recorded sizes."""
    with suppress(OSError, DataError):
        check_shard(copy, manifest, hashes=False)
        return (copy / "manifest.json").read_bytes() == (shard / "manifest.json").read_bytes()
    return False


def copy_shard(shard: Path, manifest: dict[str, Any], copy: Path) -> None:
    """Copy a shard with its indices, compare the copy with the manifest, and publish it.

    Raises: DiskError, DataError.
    """
    temporary = temporary_of(copy)
    try:
        with on_disk(copy, sum(file["bytes"] for file in manifest["files"].values())):
            temporary.mkdir()
            for path in [*shard.glob("[!.]*"), *shard.glob(".*.npy")]:
                shutil.copyfile(path, temporary / path.name)
        try:
            check_shard(temporary, manifest, hashes=True)
        except DataError:
            check_shard(shard, manifest, hashes=True)  # the shard itself may be damaged
            raise
        publish_folder(temporary, copy)
    except BaseException:
        remove(temporary)
        raise
