"""Tasks of preparation: their names, and running them here or in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any


def task_name(task: int) -> str:
    """Name a task's shard."""
    return f"task-{task:05d}"


def run_tasks(run: Callable[[Any], dict[str, Any]], todo: Sequence[Any], workers: int) -> Iterator[dict[str, Any]]:
    """Run tasks here, or in processes of their own, and yield their manifests as they finish."""
    if workers <= 1 or len(todo) <= 1:
        yield from map(run, todo)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(todo)), mp_context=context, initializer=one_thread) as pool:
        futures = [pool.submit(run, task) for task in todo]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def one_thread() -> None:
    """Keep the tokenizers library to one thread in a worker process; the library reads no other setting."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
