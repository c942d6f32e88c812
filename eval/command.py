"""What the commands that measure a model do around the measurement: help, one line for what is wrong, exit status."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from eval.measuring import Output, Request, help_text, read_request
from lab.errors import LabError
from lab.schema import Section

WRONG, STOPPED = 2, 75
GOES_ON = "stopped; the same command goes on"
STARTS_ANEW = "stopped; nothing was written"


def run(
    description: str | None,
    options_class: type[Section],
    measure: Callable[[Request], str],
    arguments: Sequence[str],
    *,
    output: Output = "picture",
    stopped: str = GOES_ON,
) -> int:
    """Read the command line, print what `measure` returns, and return the exit status."""
    words = list(arguments)
    if not words or {"-h", "--help"} & set(words):
        print(help_text(str(description), options_class, output=output))
        return 0 if words else WRONG
    return guarded(lambda: measure(read_request(words, options_class, output=output)), stopped)


def guarded(work: Callable[[], str], stopped: str = GOES_ON) -> int:
    """Print what `work` returns, or the one line that says why there is nothing, and return the exit status."""
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
