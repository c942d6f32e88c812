"""Processes that run tasks of a preparation, and end with the one that started them."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from lab.errors import DataError


def in_processes(run: Callable[[Any], None], todo: Sequence[Any], workers: int, on_done: Callable[[], object]) -> None:
    """Run tasks in this process or in worker processes; `on_done` is called after each.

    This is no generator: an abandoned one would wait for the workers in whatever thread collects it.
    """
    if workers <= 1 or len(todo) <= 1:
        for _ in map(run, todo):
            on_done()
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(todo)), mp_context=context, initializer=begin_worker) as pool:
        try:
            for _ in pool.map(run, todo):
                on_done()
        except BrokenProcessPool as error:
            rule = f"a worker was killed, perhaps for its memory; run the same command again with fewer than {workers}"
            raise DataError(f"--workers={workers}: {rule}") from error


def begin_worker() -> None:
    """End a worker process with its parent, and limit its tokenizers library to one thread; it has no other setting."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a worker only"

    def end_after() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_after, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
