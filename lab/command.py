"""What commands do around their work: help, one line for what is wrong, exit status."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from lab.errors import LabError

WRONG, STOPPED = 2, 75
GOES_ON = "stopped; the same command goes on"
STARTS_ANEW = "stopped; nothing was written"


def run(
    describe: Callable[[], str],
    arguments: Sequence[str],
    work: Callable[[list[str]], str],
    *,
    stopped: str = STARTS_ANEW,
) -> int:
    """Print what `describe` says where help is asked for, else what `work` makes of the words; return the status."""
    words = list(arguments)
    if not words or {"-h", "--help"} & set(words):
        print(describe())
        return 0 if words else WRONG
    return guarded(lambda: work(words), stopped)


def guarded(work: Callable[[], str], stopped: str) -> int:
    """Print what `work` returns, or the one line that says why there is nothing, and return the exit status.

    A KeyboardInterrupt may say for itself how to go on.
    """
    try:
        print(work())
    except LabError as error:
        print(error, file=sys.stderr)
        return WRONG
    except KeyboardInterrupt as signal_:
        print(str(signal_) or stopped, file=sys.stderr)
        return STOPPED
    return 0


def start(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a command of this process; a job's end signal stops it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(main(sys.argv[1:]))
