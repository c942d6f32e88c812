"""A process that ends when its parent does, however the parent ends; on Linux, elsewhere it stays."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)
LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded before a fork, not after it


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent, whose number is given, ends; exec keeps that."""
    if LIBRARY is not None:
        LIBRARY.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)
