"""Stopping on a signal, after the death of torchrun, or where a loss or gradient is not finite.

On a signal the current step or length is finished, a checkpoint saved, the exit status is 75. A step that is not finite
updates nothing: nothing is saved either, and the exit status is 1.

A second Ctrl-C ends the process at once. Other signals do not: launchers and clusters repeat them, and a run that is
already saving must not be killed by a repeated signal.

Work of all ranks that may fail on any of them, such as a probe, ends on all of them `together`. Between its first and
its last step it communicates by `exchange` only: a rank that fails joins the next exchange of the others, so that all
of them fail there, and none waits. Any other collective call is `in_step`: what fails on one rank inside it leaves the
others waiting, and the run ends.
"""

from __future__ import annotations

import os
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import lightning
from lightning.pytorch.callbacks import Callback
from torch import distributed

from lab.command import FAILED, show
from lab.errors import LabError
from lab.launch import Launch

Result = TypeVar("Result")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # Ctrl-C; kill and preemption; SLURM's warning
SHOWN = 8  # streams that a fault names
LOST = re.compile("peer|timed out|remote", re.IGNORECASE)  # in the errors of gloo and NCCL
COPY_S = 1.0  # a Ctrl-C this soon after another is the same one, forwarded by a launcher


class Stopping(Callback):
    """Turns signals into a stop that all ranks agree on, after a step or between two lengths of a probe."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.stopped = False
        self.fault: str | None = None  # why the run cannot go on
        self.asked_at: float | None = None
        self.parent = os.getppid()

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Install the handlers after Lightning has installed its own; it restores the original ones at the end."""

        def ask(number: int, frame: Any) -> None:
            now = time.monotonic()
            if number == signal.SIGINT and self.asked_at is not None and now - self.asked_at > COPY_S:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            self.asked_at = self.asked_at or now
            module.stop_asked = True

        for number in SIGNALS:
            signal.signal(number, ask)

    def on_train_batch_start(self, trainer: lightning.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """Stop the ranks of a torchrun that has been killed, as nothing else ends them."""
        if self.launch.by_torchrun and os.getppid() != self.parent and not module.stop_asked:
            module.stop_asked = True
            show(f"torchrun (process {self.parent}) of rank {self.launch.rank} has ended; saving", error=True)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the loop once all ranks know, which they do from the step's sums."""
        if not module.finished:
            return
        if module.finished.skipped:
            self.fault = (
                f"optim.lr={module.optim.lr}: step {trainer.global_step}, which ends at {module.consumed:,} tokens, "
                f"{not_finite(module.finished.streams)}; start another run with a lower optim.lr, or resume from the "
                "last checkpoint on another machine"
            )
        if self.fault or module.stop_agreed:
            self.stop(trainer)

    def agree(self, trainer: lightning.Trainer, module: Any) -> bool:
        """End the loop if any rank received a signal, and return whether one did; a collective call."""
        if any(exchange(module.stop_asked)):
            self.stop(trainer)
        return self.stopped

    def stop(self, trainer: lightning.Trainer) -> None:
        """End the loop before the next step."""
        self.stopped = trainer.should_stop = True

    def on_exception(self, trainer: lightning.Trainer, module: Any, exception: BaseException) -> None:
        """End a rank that fails at once, so that torchrun ends the others: its teardown would wait for them."""
        if self.launch.world_size > 1 and isinstance(exception, Exception) and not isinstance(exception, LabError):
            if isinstance(exception, OutOfStep) or LOST.search(str(exception)):
                show(f"rank {self.launch.rank} (process {os.getpid()}) failed ({describe(exception)})", error=True)
            else:
                traceback.print_exception(exception)
            os._exit(FAILED)

    def ignore(self) -> None:
        """Ignore signals once all is saved, while the run reports and the process exits."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def not_finite(streams: Sequence[int]) -> str:
    """Describe a step without an update by the streams whose packs have a loss that is not finite.

    Example:
        >>> not_finite([0, 3]), not_finite([])
        ('has a loss that is not finite (streams 0, 3)', 'has a gradient that is not finite (all losses are)')
    """
    if not streams:
        return "has a gradient that is not finite (all losses are)"
    more = f" and {len(streams) - SHOWN} more" if len(streams) > SHOWN else ""
    return f"has a loss that is not finite (streams {', '.join(map(str, streams[:SHOWN]))}{more})"


class WorkFailed(Exception):
    """The work failed on some rank, as all ranks know."""


class OutOfStep(RuntimeError):
    """This rank failed where the others wait for it in a collective call."""


def exchange(value: Any, reason: str | None = None) -> list[Any]:
    """Collect a value of every rank, in order; a collective call.

    Raises: WorkFailed on every rank where one has a reason.
    """
    parts = [(value, reason)]
    if distributed.is_available() and distributed.is_initialized():
        parts = parts * distributed.get_world_size()
        distributed.all_gather_object(parts, (value, reason))
    reasons = [f"rank {rank}: {reason}" for rank, (_, reason) in enumerate(parts) if reason]
    if reasons:
        raise WorkFailed(reasons[0])
    return [value for value, _ in parts]


def together(work: Callable[[], Result]) -> Result:
    """Do this rank's part of some work, and return once it has ended well on all ranks; a collective call.

    Raises: WorkFailed on every rank.
    """
    try:
        result = work()
    except (WorkFailed, OutOfStep):
        raise
    except Exception as error:  # of any kind: what the work measures must not end the run
        exchange(None, describe(error))
        raise AssertionError("the exchange raises") from error
    exchange(None)
    return result


@contextmanager
def in_step() -> Iterator[None]:
    """Mark what fails in a collective call of the work.

    Raises: OutOfStep.
    """
    try:
        yield
    except Exception as error:
        raise OutOfStep(describe(error)) from error


def describe(error: BaseException) -> str:
    """Return the kind of an error and the first line of its text."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
