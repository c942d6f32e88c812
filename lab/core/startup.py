"""What must come before a command imports anything else, such as torch: checks, and how a signal ends a rank."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import cache
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""By which a run stops: Ctrl-C; kill and preemption; SLURM's warning; a closed terminal, but not under nohup."""


def handle_signals(handler: Callable[[int, FrameType | None], object]) -> dict[signal.Signals, Handler]:
    """Call a handler at each of SIGNALS, and return the handlers before."""
    before = {}
    for number in SIGNALS:
        # nohup ignores a closed terminal; so must the run that it starts
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    return before


class RankSignals:
    """Lets a thread of a rank take its signals: while the main thread waits in C++ for other ranks, no handler runs.

    `act` is called with each signal. Until a run replaces it, there is nothing to save, and the process ends at once.
    """

    def __init__(self) -> None:
        self.act: Callable[[int], object] = end_import
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        # A handler, though it does nothing, lets Python write the signal to the pipe.
        handle_signals(lambda number, frame: None)
        threading.Thread(target=self.follow, args=[reader], daemon=True).start()

    def follow(self, reader: int) -> None:
        while True:
            number = os.read(reader, 1)[0]
            self.act(number)  # looked up after the wait


@cache
def take_signals() -> RankSignals:
    """Take the signals of this rank from now on; later calls return the same."""
    # Where the first rank has ended with its store, a line of the lab says so, not forty of torch in C++.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    return RankSignals()


def end_import(number: int) -> None:
    """End a rank that still imports, with a line on each node."""
    if os.environ.get("LOCAL_RANK") == "0":
        sys.stderr.write("stopped; nothing was written\n")
        sys.stderr.flush()
    os._exit(75)


def is_command() -> bool:
    """Return whether `python -m lab.X` or `python -m eval.X` is starting, not a script that imports the lab.

    Python sets the first argument to `-m` while it imports the package of the module that it is about to run.
    """
    if sys.argv[:1] != ["-m"] or "-m" not in sys.orig_argv:
        return False
    return sys.orig_argv[sys.orig_argv.index("-m") + 1].startswith(("lab.", "eval."))


def check_system() -> None:
    """End the process with status 2 and one line on Windows, which has neither signals to save at nor flock."""
    if sys.platform == "win32":
        sys.stderr.write("Windows: is not supported; use WSL, Linux or macOS\n")
        raise SystemExit(2)
