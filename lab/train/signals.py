"""Turns signals into a stop that all ranks agree on, after a step or between two lengths of a probe.

A run stops on a signal, after the death of torchrun, or where a loss or gradient is not finite. On a signal the current
step or length is finished and a checkpoint saved; the exit status is 75. A step that is not finite updates nothing:
nothing is saved either, and the exit status is 1. A second Ctrl-C ends the process at once. Other signals do not:
launchers and clusters repeat them, and a repeated signal must not kill a run that is already saving.
"""

import math
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lab.core.command import EXIT_FAILURE, show
from lab.core.errors import LabError
from lab.core.launch import COPY_S, SIGNALS, Launch, OutOfStep, exchange
from lab.train.state import StepStats, TrainState

LOST = re.compile("peer|timed out|remote", re.IGNORECASE)  # in the errors of gloo and NCCL


def describe(error: BaseException) -> str:
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


class Stopping:
    """Whether the run is asked to stop, has stopped, and why. `begun` is set once there is something to save."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        # A signal reaches one rank, or all of them at different steps. `is_asked` is this rank's own; only what the
        # ranks have exchanged sets `stopped`, so that none leaves the others waiting in a collective call.
        self.is_asked = False
        self.stopped = False
        self.fault: str | None = None  # why the run cannot go on
        self.asked_at: float | None = None
        self.begun: threading.Event | None = None

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Take signals in the body; afterwards restore the handlers, or ignore signals if the process ends next.

        Where there is a `begun` to set, the process reports and exits after the training.
        """
        handlers: dict[signal.Signals, Any] = {}
        for number in SIGNALS:
            # nohup ignores a closed terminal; so must the run that it starts
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                handlers[number] = signal.signal(number, self.ask)
        try:
            yield
            # All is saved. A signal that is repeated now must not change the exit status, nor cut the report.
            if self.begun is not None:
                handlers = dict.fromkeys(SIGNALS, signal.SIG_IGN)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def ask(self, number: int, frame: Any) -> None:
        """Note a signal, by which all ranks stop after the step; a second Ctrl-C ends the process."""
        now = time.monotonic()
        # One Ctrl-C arrives twice: from the terminal, and passed on by torchrun. Only a later one is a second.
        if number == signal.SIGINT and self.asked_at is not None and now - self.asked_at > COPY_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.asked_at = self.asked_at or now
        self.is_asked = True

    def check(self, state: TrainState, stats: StepStats) -> None:
        """Stop after a step that is not finite, or once a rank was asked, as all ranks know from the step's sums."""
        # From the first step on there is something to save, also if torchrun ends.
        if self.begun is not None:
            self.begun.set()
        if stats.skipped:
            what = "gradient" if math.isfinite(stats.sums["loss"]) else "loss"
            fix = "start another run with a lower optim.lr, or resume from the last checkpoint on another machine"
            place = f"step {state.step}, which ends at {state.consumed:,} tokens"
            self.fault = f"optim.lr={state.recipe.optim.lr}: {place}, has a {what} that is not finite; {fix}"
        if self.fault or stats.sums["stop"]:
            self.stopped = True

    def agree(self) -> bool:
        """Stop if any rank was asked, and return whether the run stops; a collective call."""
        if any(exchange(self.is_asked)):
            self.stopped = True
        return self.stopped

    @contextmanager
    def ending_ranks(self) -> Iterator[None]:
        """End a rank whose body fails at once, so that torchrun ends the others: it would wait for them."""
        try:
            yield
        except Exception as error:
            if self.launch.world_size == 1 or isinstance(error, LabError):
                raise
            # A rank that lost its peer prints one line; the traceback is that of the rank where it began.
            if isinstance(error, OutOfStep) or LOST.search(str(error)):
                show(f"rank {self.launch.rank} (process {os.getpid()}) failed ({describe(error)})", error=True)
            else:
                traceback.print_exception(error)
            # An ordinary exit would wait for the threads of the process group, which wait for the other ranks.
            os._exit(EXIT_FAILURE)
