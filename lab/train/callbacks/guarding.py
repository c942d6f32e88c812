"""Work of all ranks that may fail on any of them without ending the run.

Between its first and its last step such work communicates by `exchange` only. A rank that fails joins the next exchange
of the others, so that all of them fail there, and none waits. Any other collective call is `in_step`: what fails on one
rank inside it leaves the others waiting, and the run ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import distributed

Result = TypeVar("Result")


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
