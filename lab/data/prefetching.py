"""Packing in a background process, which lives as long as the training process; one that is killed is replaced."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from lab.command import show
from lab.errors import DataError
from lab.lifetime import described_end, end_with

END_S = 10.0
Batch = dict[str, Any]


class Killed(Exception):
    """The background process has ended."""


class Prefetched(DataLoader[Batch]):
    """Batches of an endless dataset from one background process, `prefetch` ahead; it is iterated in the main thread.

    torch raises wherever the training process is once the background process is killed. Here that is noticed at the
    next batch: `reopen` sets the dataset to what follows the batches delivered, given the newest state of each stream
    and the last stream, and another process packs on. One that is killed before its first batch ends the run.

    Raises: LabError.
    """

    def __init__(
        self, dataset: IterableDataset[Batch], prefetch: int, reopen: Callable[[Mapping[int, np.ndarray], int], None]
    ) -> None:
        super().__init__(
            dataset,
            batch_size=None,
            collate_fn=unchanged,
            worker_init_fn=outlive_signals,
            num_workers=1,
            prefetch_factor=prefetch,
            persistent_workers=True,
            pin_memory=torch.cuda.is_available(),
        )
        self.reopen = reopen
        self.worker: BaseProcess | None = None
        self.waits = False

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # torch's own iterator ends with its process
        """Yield all batches in order, whatever happens to the process that packs them."""
        states: dict[int, np.ndarray] = {}
        while True:
            batches, n = self.start(super().__iter__), 0
            try:
                while True:
                    batch = self.next_of(batches)
                    if "fault" in batch:
                        raise batch["fault"]
                    states[batch["stream"]] = np.asarray(batch["state"])
                    n += 1
                    yield batch
            except Killed as error:
                if n == 0:
                    raise DataError(
                        f"data.prefetch={self.prefetch_factor}: {error} before its first batch; look for what killed "
                        "it, such as a lack of memory, or pack in the training process with data.prefetch=0"
                    ) from error
                show(f"data.prefetch={self.prefetch_factor}: {error}; another one packs the same batches", error=True)
            self._iterator = None
            self.reopen(states, batch["stream"])

    def start(self, begin: Callable[[], Any]) -> Any:
        """Start the background process, and take over the signal of its end, which torch has just installed."""
        before = multiprocessing.active_children()
        batches = begin()
        self.worker = next((child for child in multiprocessing.active_children() if child not in before), self.worker)
        signal.signal(signal.SIGCHLD, self.on_child)
        return batches

    def next_of(self, batches: Iterator[Batch]) -> Batch:
        """Wait for the next batch.

        Raises: Killed.
        """
        assert self.worker is not None, "was started"
        self.waits = True
        try:
            self.on_child()  # a message that was cut short would be waited for without end
            return next(batches)
        except Exception as error:
            if isinstance(error, (OSError, EOFError)):  # its sockets are closed before it has ended
                self.worker.join(END_S)
            if self.worker.is_alive():
                raise
            raise Killed(f"the packing process {self.worker.pid} {described_end(self.worker.exitcode)}") from error
        finally:
            self.waits = False

    def on_child(self, *signalled: Any) -> None:
        """Interrupt the wait for a batch that will not come."""
        if self.waits and self.worker is not None and not self.worker.is_alive():
            raise Killed


def unchanged(batch: Any) -> Any:
    """Return a batch as it is: default collation would make the stream's state a tensor and move it to the device."""
    return batch


def outlive_signals(worker: int) -> None:
    """Ignore signals to the process group, as the training process still needs packs, and end when it does."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a worker only"
    end_with(parent.pid or 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=obey_parent, args=(parent.pid,), daemon=True).start()


def obey_parent(parent: int) -> None:
    """Exit when the parent sends SIGTERM; from other processes it is ignored."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
