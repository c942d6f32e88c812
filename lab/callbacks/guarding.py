"""Work of all ranks that may fail on any of them without ending the run, and its time limit.

Between its first and its last step such work communicates by `exchange` only, beside the forward passes of a sharded
model. A rank that fails joins the next exchange of the others, so that all of them fail there, and none waits. What
fails on one rank inside a sharded forward pass leaves the others waiting in it: the run ends, unless all fail there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from torch import distributed

Result = TypeVar("Result")
MEET_S = 20.0  # for the other ranks to fail in a sharded forward pass as well, as all do that run out of memory


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


def meeting() -> distributed.ProcessGroup | None:
    """Create the group in which ranks meet that fail in a sharded forward pass; a collective call."""
    if not distributed.is_initialized():
        return None
    group: distributed.ProcessGroup = distributed.new_group(backend="gloo", timeout=timedelta(seconds=MEET_S))
    return group


@contextmanager
def in_step(group: distributed.ProcessGroup | None) -> Iterator[None]:
    """Raise what fails in a sharded forward pass if it fails on all ranks, which then meet in `group`.

    Raises: OutOfStep where another rank does not fail.
    """
    try:
        yield
    except Exception as error:
        if group is not None:
            try:
                distributed.barrier(group)
            except RuntimeError:
                raise OutOfStep(describe(error)) from error
        raise


def describe(error: BaseException) -> str:
    """Return the kind of an error and the first line of its text."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


class Deadline:
    """A time limit on work, checked before every call of the model.

    With `lockstep`, where all ranks call the model equally often, they exchange whether one is over it, so that none
    begins a forward pass without the others.
    """

    def __init__(self, name: str, seconds: float | None, *, lockstep: bool) -> None:
        self.rule, self.lockstep = f"{name}={seconds}: exceeded", lockstep
        self.end = None if seconds is None else time.monotonic() + seconds

    def check(self) -> None:
        """Check the time left.

        Raises: TimeoutError.
        """
        over = self.end is not None and time.monotonic() > self.end
        if any(exchange(over)) if self.lockstep else over:
            raise TimeoutError(self.rule)
