"""What must come before a command imports anything else, such as torch: checks, and how a signal ends a rank."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import cache

PACKAGES = (b"lab", b"eval")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""By which a run stops: Ctrl-C; kill and preemption; SLURM's warning; a closed terminal, but not under nohup."""


class RankSignals:
    """Lets a thread of a rank take its signals: while the main thread waits in C++ for other ranks, no handler runs.

    `act` is called with each signal. Until a run replaces it, there is nothing to save, and the process ends at once.
    """

    def __init__(self) -> None:
        self.act: Callable[[int], object] = end_import
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        for number in SIGNALS:
            # nohup ignores a closed terminal; so must the run that it starts
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                # A handler, though it does nothing, lets Python write the signal to the pipe.
                signal.signal(number, lambda number, frame: None)
        threading.Thread(target=self.follow, args=[reader], daemon=True).start()

    def follow(self, reader: int) -> None:
        while True:
            number = os.read(reader, 1)[0]
            self.act(number)  # looked up after the wait


@cache
def take_signals() -> RankSignals:
    """Take the signals of this rank from now on; later calls return the same."""
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


def find_shadowing_file() -> str | None:
    """Find a file that Python would import in place of its own module of that name, and that imports the lab.

    Only the folders before the standard library on `sys.path` can contain one: a plugin, for instance, or a measure.
    """
    names = {f"{name}.py" for name in sys.stdlib_module_names}
    for folder in sys.path:
        if folder == os.path.dirname(os.__file__):
            break
        try:
            files = os.listdir(folder or ".")
        except OSError:
            continue
        for name in sorted(names.intersection(files)):
            path = os.path.join(folder, name)
            if imports_the_lab(path):
                return path
    return None


def imports_the_lab(path: str) -> bool:
    """Return whether a line of a file imports one of the lab's packages."""
    try:
        with open(path, "rb") as source:
            for line in source:
                words = line.split()
                if len(words) > 1 and words[0] in (b"import", b"from") and words[1].split(b".")[0] in PACKAGES:
                    return True
    except OSError:
        return False
    return False


def check_system() -> None:
    """End the process with status 2 and one line if the system cannot run a command."""
    error = None
    # Windows has neither the signals at which a run saves nor flock for its folder.
    if sys.platform == "win32":
        error = "Windows: is not supported; use WSL, Linux or macOS"
    elif path := find_shadowing_file():
        rule = "takes the place of Python's own module of that name"
        error = f"{path}: {rule}; rename the file, as my_{os.path.basename(path)}"
    if error is not None:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2)
