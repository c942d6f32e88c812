"""Files and folders that are complete or absent: written under a temporary name, synced, renamed; disks; and locks.

One process at a time writes to a folder. It holds a lock by flock(2) on a file in it, which the kernel frees when the
process ends. A sidecar file names the holder, for the message to others. Processes that the holder starts do not
inherit the lock. A file system without flock is rejected, because a file alone would outlast a killed process.
"""

import errno
import hashlib
import json
import os
import platform
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # typing's own is not read by pydantic before Python 3.12

from lab.core.errors import ConfigError, DataError, DiskError, InUse, LabError

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Full, over a quota or a limit of file sizes, broken, read-only."""
BARRED = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE)
"""Without permission, or with too many open files."""
LONGEST_JSON = 2**25  # characters of a file; the largest index of a model's weights has some 15 million
PART_BYTES = 2**18  # that are read at a time to be hashed
ALL = ("",)  # how the names of all files begin
SHOWN = 12  # hexadecimal digits of a hash in messages
LEFTOVER = ".*.tmp-*"  # names of temporary_of
LOCK_NAME = ".lock"
JOB = "SLURM_JOB_ID"
POLL_S = 0.1
GRACE_S = 0.5  # another process may hold a lock for a moment, to see whether it is held
AGAIN = "run the same command again, probe-lab fit with --resume"


class FileEntry(TypedDict):
    """What a manifest records of a file."""

    bytes: int
    sha256: str


FILES = TypeAdapter(dict[str, FileEntry])


@contextmanager
def writing(named: str, other: str) -> Iterator[None]:
    """Report in one line why a file or folder, `named` as the user wrote it, cannot be written.

    Raises: ConfigError, whose remedy is to name another `other`: a file, a folder.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"{named}: cannot be written ({reason}); name another {other}") from error


@contextmanager
def on_disk(path: Path | None = None, needed: int | None = None) -> Iterator[None]:
    """Report in one line that a disk is full or fails; without `path`, also that a file cannot be opened or changed.

    Units: `needed` in bytes.
    Raises: DiskError.
    """
    try:
        yield
    except OSError as error:
        named = path or Path(error.filename or ".")
        # A caller that names a path reports missing permissions itself, with another folder as the fix.
        if path is None and error.errno in BARRED:
            remedy = f"see its permissions, and `ulimit -n`, and {AGAIN}"
            raise DiskError(f"{named}: cannot be used ({error.strerror}); {remedy}") from error
        if error.errno not in DISK:
            raise
        raise DiskError(disk_fault(named, needed, error.strerror or "")) from error


def disk_fault(path: Path, needed: int | None, reason: str) -> str:
    wants = "more"
    if needed is not None:
        wants = f"{needed:,} bytes"
    remedy = f"make room on this disk, or check it, and {AGAIN}"
    return f"{path}: needs {wants}, {free_bytes(path):,} bytes are free ({reason}); {remedy}"


def free_bytes(path: Path) -> int:
    """Count the free bytes of the file system that holds a path, which may not exist yet."""
    return shutil.disk_usage(next(folder for folder in [path, *path.absolute().parents] if os.path.exists(folder))).free


def name_temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp-{secrets.token_hex(8)}")


def remove(path: Path) -> None:
    """Delete a file, a link or a folder, if it exists."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    # A kill during the deletion leaves a part of the folder, which must not have the folder's name.
    if not path.match(LEFTOVER):
        path = path.rename(name_temporary(path))
    shutil.rmtree(path)


def remove_leftovers(folder: Path) -> None:
    """Delete what a kill left half written in a folder that this process owns, and in its subfolders."""
    for path in [*folder.glob(LEFTOVER), *folder.glob(f"*/{LEFTOVER}")]:
        remove(path)


def write_atomic(path: Path, data: bytes) -> FileEntry:
    """Write a file atomically, and return its entry in a manifest.

    Raises: DiskError.
    """
    return write_parts(path, [data])


def write_parts(path: Path, parts: Iterable[bytes]) -> FileEntry:
    """Write a file atomically from parts, which may be read from the old file, and return its entry in a manifest.

    Raises: DiskError.
    """
    temporary = name_temporary(path)
    with on_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            entry = write_hashed(temporary, parts, path)
            temporary.replace(path)
            # A loss of power can undo the rename until the folder, which has the file's name, is synced.
            sync(path.parent)
            return entry
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_object(path: Path, error: type[LabError], remedy: str) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises: `error` for anything else, whose line ends with the remedy.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST_JSON + 1)
        if len(text) > LONGEST_JSON:
            raise ValueError(f"longer than {LONGEST_JSON:,} characters")
        value = json.loads(text)
    except (OSError, ValueError, RecursionError) as fault:
        raise error(f"{path}: cannot be read ({fault}); {remedy}") from fault
    if not isinstance(value, dict):
        raise error(f"{path}: cannot be read (not a JSON object); {remedy}")
    return value


def read_entries(manifest: dict[str, Any]) -> dict[str, FileEntry] | None:
    """Return the files that a manifest lists by name, or None unless all are in its own folder or one in it.

    Example:
        >>> entry = {"bytes": 1, "sha256": "00"}
        >>> read_entries({"files": {"a.bin": entry}}), read_entries({"files": {"../a.bin": entry}})
        ({'a.bin': {'bytes': 1, 'sha256': '00'}}, None)
    """
    try:
        files = FILES.validate_python(manifest.get("files"), strict=True)
    except ValidationError:
        return None
    for name in files:
        if name != Path(name).as_posix() or Path(name).is_absolute() or ".." in name:
            return None
    return files


def build_manifest(folder: Path, pattern: str = "*") -> dict[str, FileEntry]:
    return {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in sorted(folder.glob(pattern))}


def check_sizes(folder: Path, files: Mapping[str, FileEntry], remedy: str, *, hashes: bool = False) -> None:
    """Reject a folder in which a file of its manifest is missing, or has another size or, with `hashes`, SHA-256."""
    for name, entry in files.items():
        if fault := file_fault(folder / name, entry, hashes=hashes):
            raise DataError(f"{folder / name}: {fault}; {remedy}")


def faults_in(
    folder: Path, files: Mapping[str, FileEntry], *, unread: tuple[str, ...] = (), grow: Collection[str] = ()
) -> Iterator[str]:
    """List how files of a folder differ from their entries; those whose names begin as `unread` are not hashed."""
    for name, entry in files.items():
        if fault := file_fault(folder / name, entry, hashes=not name.startswith(unread), grows=name in grow):
            yield f"{folder / name}: {fault}"


def file_fault(path: Path, expected: FileEntry, *, hashes: bool = False, grows: bool = False) -> str | None:
    """Return how a file differs from its entry in a manifest, or None; its SHA-256 is compared only with `hashes`.

    Of a file that `grows` only the first bytes are compared, as many as the manifest records.
    """
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    first = None
    if grows:
        first = expected["bytes"]
    if size != expected["bytes"] and not (grows and size > expected["bytes"]):
        return f"has {size:,} bytes, its manifest records {expected['bytes']:,}"
    if not hashes:
        return None
    try:
        digest = sha256(path, first)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if digest != expected["sha256"]:
        return f"has SHA-256 {digest[:SHOWN]}, its manifest records {expected['sha256'][:SHOWN]}"
    return None


def sha256(path: Path, first: int | None = None) -> str:
    """Return the SHA-256 of a file, or of its `first` bytes, in hexadecimal."""
    with path.open("rb") as file:
        if first is None:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256()
        # In parts, because records of a long run can be larger than the memory.
        while first and (part := file.read(min(first, PART_BYTES))):
            digest.update(part)
            first -= len(part)
        return digest.hexdigest()


def write_hashed(path: Path, parts: Iterable[bytes | memoryview], named: Path | None = None) -> FileEntry:
    """Write a new file in parts, hashing it while writing, and sync it; errors name another path where one is given.

    Raises: DiskError.
    """
    digest = hashlib.sha256()
    size = 0
    try:
        with path.open("xb") as file:
            for part in parts:
                size += memoryview(part).nbytes
                file.write(part)
                digest.update(part)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with on_disk(named or path, size):
            raise
    return {"bytes": size, "sha256": digest.hexdigest()}


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_folder(temporary: Path, final: Path) -> None:
    """Rename a finished folder to its final name, replacing what has that name.

    Raises: DiskError.
    """
    with on_disk(final):
        for path in [*temporary.rglob("*"), temporary]:
            sync(path)
        remove(final)
        temporary.rename(final)
        sync(final.parent)


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a file, whose folder is made where it is missing, during the body; delete its files at the end.

    Raises: InUse where another process holds it, unless it is to be waited for; ConfigError where it cannot be written.
    """
    with writing(str(path), "folder"), on_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        timeout = GRACE_S
        if wait:
            timeout = -1
        # filelock's soft lock is a file that a killed process leaves behind, so that nobody could ever take it.
        lock = FileLock(path, timeout=timeout, fallback_to_soft=False)
        try:
            lock.acquire(poll_interval=POLL_S)
        except Timeout:
            raise InUse(in_use(path)) from None
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        holder = {"host": platform.node(), "pid": os.getpid(), "since": since, "job": os.environ.get(JOB)}
        holder_file(path).write_text(json.dumps(holder), encoding="utf-8")
    try:
        yield
    finally:
        # Before the release: afterwards, the files may be those of the next holder.
        for file in (holder_file(path), path):
            with suppress(OSError):
                file.unlink()
        lock.release()


def is_held(path: Path) -> bool:
    """Return whether any process holds the lock of a file."""
    if not path.exists():
        return False
    try:
        with locked(path):
            return False
    except InUse:
        return True


def in_use(path: Path) -> str:
    """Describe who holds the lock of a folder, and what to do."""
    holder: dict[str, Any] = {}
    # The file may not exist yet, or be cut off because its process was killed.
    with suppress(OSError, ValueError):
        holder = json.loads(holder_file(path).read_text(encoding="utf-8"))
    if not holder:  # some file systems also refuse a lock by the error of one that is held
        return f"{path.parent}: cannot be locked, and no process says that it holds the lock; try again, or elsewhere"
    pid, host, since = (holder.get(name, "unknown") for name in ("pid", "host", "since"))
    if holder.get("job") and holder["job"] == os.environ.get(JOB):
        return f"{path.parent}: is in use by another process of this job since {since}; start one for each folder"
    return f"{path.parent}: is in use by process {pid} on {host} since {since}; wait for it, or end it: kill {pid}"


def holder_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.holder")
