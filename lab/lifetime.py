"""How processes end: with their parent, however that ends (on Linux; elsewhere they stay); and by which signal."""

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


def described_end(code: int | None) -> str:
    """Describe how a process ended by its exit status, negative for a signal as in subprocess; None is unknown.

    Example:
        >>> described_end(-9), described_end(2), described_end(None)
        ('was killed by SIGKILL', 'ended with status 2', 'has ended')
    """
    if code is None:
        return "has ended"
    if code >= 0:
        return f"ended with status {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"was killed by {known.get(-code, f'signal {-code}')}"
