"""Tasks of preparation: their names, and running them in this process or in worker processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from lab.lifetime import end_with


def task_name(task: int) -> str:
    """Return the name of a task's shard."""
    return f"task-{task:05d}"


def run_tasks(run: Callable[[Any], dict[str, Any]], todo: Sequence[Any], workers: int) -> Iterator[dict[str, Any]]:
    """Run tasks in this process or in worker processes, and yield their manifests as they finish."""
    if workers <= 1 or len(todo) <= 1:
        yield from map(run, todo)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(todo)), mp_context=context, initializer=begin_worker) as pool:
        futures = [pool.submit(run, task) for task in todo]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def begin_worker() -> None:
    """End a worker process with its parent, and limit its tokenizers library to one thread; it has no other setting."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a worker only"
    end_with(parent.pid or 0)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
