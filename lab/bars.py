"""Progress bars on stderr: a bar on a terminal, in a file or pipe a plain line every few seconds."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from tqdm import tqdm

REFRESH_S = 0.2
LOG_REFRESH_S = 10.0  # where the output is a file, a line this often is enough
SHOWN = "{n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}"


class Lines:
    """A stream for a bar that writes each of its states as a line, for files and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        """Write a state without what moves a terminal's cursor; tqdm writes line ends by themselves."""
        state = text.strip()
        if state:
            self.stream.write(f"{state}\n")

    def flush(self) -> None:
        """Flush the stream."""
        self.stream.flush()


class Bar(tqdm):  # type: ignore[misc]
    """Counts what is done; what remains follows from the mean rate since the start, whatever took the time."""

    def __init__(self, iterable: Any = None, *, desc: str, **settings: Any) -> None:
        self.on_terminal = sys.stderr.isatty()
        whole = {
            "smoothing": 0,  # the mean rate, so that what remains includes probes and saves
            "file": sys.stderr if self.on_terminal else Lines(sys.stderr),
            "mininterval": REFRESH_S if self.on_terminal else LOG_REFRESH_S,
            "delay": 0 if self.on_terminal or settings.get("leave", True) else LOG_REFRESH_S,  # of short steps
            "bar_format": "{desc}: {percentage:3.0f}%" + ("|{bar:20}| " if self.on_terminal else " ") + SHOWN,
        }
        super().__init__(iterable, desc=desc, **{**whole, **settings})

    def known(self, n: int) -> None:
        """Count what an earlier call has finished, which tells nothing about the rate."""
        self.initial += n
        self.update(n)

    def name(self, text: str) -> None:
        """Show what is worked on; in a file with the next line."""
        self.set_postfix_str(text, refresh=self.on_terminal)
