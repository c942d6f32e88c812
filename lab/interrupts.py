"""Ctrl-C while a command still imports its modules: one line in place of a traceback through them."""

from __future__ import annotations

import sys
from types import TracebackType


def in_one_line(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print an interrupt that nothing has caught as one line; Python then ends the process by SIGINT, status 130."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("interrupted; nothing was written\n")
    else:
        sys.__excepthook__(kind, error, traceback)
