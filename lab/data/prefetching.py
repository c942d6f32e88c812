"""Packing in a thread while a step computes, which holds Python's lock only to queue its kernels."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Batch = dict[str, Any]


class Prefetched:
    """The batches of an endless iterable, `prefetch` of them made ahead by one thread, in the same order.

    What making a batch raises is raised where that batch is due. The thread ends with the iterator.
    """

    def __init__(self, batches: Iterable[Batch], prefetch: int) -> None:
        self.batches, self.prefetch = batches, prefetch

    def __iter__(self) -> Iterator[Batch]:
        """Yield all batches."""
        batches, pool = iter(self.batches), ThreadPoolExecutor(1, "packing")
        try:
            ahead = deque(pool.submit(next, batches) for _ in range(self.prefetch))
            while True:
                batch = ahead.popleft().result()
                ahead.append(pool.submit(next, batches))
                yield batch
        finally:
            if not sys.is_finalizing():  # then the thread has ended
                pool.shutdown(cancel_futures=True)
