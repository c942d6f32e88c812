"""Tasks of preparation: their names, their owners, and running one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab.errors import InUse
from lab.files import on_disk, remove
from lab.lock import locked


def task_name(task: int) -> str:
    """Return the name of a task's shard."""
    return f"task-{task:05d}"


def run_owned(run: Callable[[Any], dict[str, Any]], folder: Path, wait: bool, task: tuple[int, Any]) -> bool:
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


def remove_marks(folder: Path) -> None:
    """Delete the locks of processes that were killed."""
    for mark in folder.glob(".task-*.lock"):
        with suppress(InUse), locked(mark):
            pass


def remove_all(folder: Path, name: str) -> None:
    """Delete what attempts at a task have left half written."""
    for leftover in folder.glob(f".{name}.tmp*"):
        remove(leftover)
