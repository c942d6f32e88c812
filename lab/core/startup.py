"""Checks that must come before a command imports anything else, such as torch."""

import os
import sys

PACKAGES = (b"lab", b"eval")


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
