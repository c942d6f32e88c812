"""Standard output and error of a command, whose loss costs lines and never the work.

A reader such as `head` may exit, a terminal close, a disk fill up. From then on a stream's lines go nowhere. The other
stream says so once, unless a reader had enough.
"""

import os
import sys
from contextlib import suppress
from typing import Any, TextIO

NAMES = ("stdout", "stderr")


class Output:
    """A text stream that outlives what it is written to."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self.stream, self.name = stream, name
        self.lost = False  # what a reader had not had enough of

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write text, or lose it."""
        try:
            return self.stream.write(text)
        except OSError as error:
            self.lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            self.lose(error)

    def lose(self, error: OSError) -> None:
        """Write to nowhere from now on; what is still buffered goes there too."""
        open_nowhere(self.stream.fileno())
        # A reader that closes a pipe, such as head, has read enough: its command has not failed.
        if not isinstance(error, BrokenPipeError):
            self.lost = True
            other = sys.stdout
            if self.name == "stdout":
                other = sys.stderr
            with suppress(OSError):
                reason = f"cannot be written ({error.strerror})"
                other.write(f"{self.name}: {reason}; its lines are lost, all else goes on\n")
                other.flush()


def open_nowhere(number: int) -> None:
    """Open the null device as a descriptor of this number, which may be open or closed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


def guard() -> None:
    """Guard both streams of this process, and open those that it was started without.

    A closed descriptor is opened on the null device first, or the next file would take its number. Characters that a
    stream's encoding lacks are written as escapes.
    """
    for number, name in enumerate(NAMES, start=1):
        try:
            os.fstat(number)
        except OSError:
            open_nowhere(number)
        stream = getattr(sys, name) or os.fdopen(number, "w", encoding="utf-8", closefd=False)
        if not isinstance(stream, Output):
            with suppress(AttributeError):  # of a stream that a test has put there
                stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, Output(stream, name))
