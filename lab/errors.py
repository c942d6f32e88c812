"""Errors shown to users, one line each: field, value, the rule it breaks, what to do."""

IN_NO_EXTRA = {  # built from source against the installed torch, which pip's isolated builds do not see
    "flash_attn": "pip install --no-build-isolation flash-attn",
}


class LabError(Exception):
    """Base of every error that the user can correct; commands print it and exit with status 2."""


class ConfigError(LabError, ValueError):
    """A setting is unknown, of the wrong type, out of range, contradictory or ignored.

    Holds one line per fault in `faults`, so that all of them are reported at once.
    """

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class DataError(LabError):
    """Text, shards or tokens cannot be read."""


class CheckpointError(LabError):
    """A checkpoint or a run folder is missing, corrupt or belongs to another run."""


class DiskError(LabError):
    """A disk is full, or fails."""


class InUse(LabError):
    """Another process writes to the same folder."""


class MissingPackage(LabError):
    """An optional package is missing; `extra` is the extra in pyproject.toml that installs it."""

    def __init__(self, package: str, needed_for: str, extra: str) -> None:
        command = IN_NO_EXTRA.get(package, f"pip install -e '.[{extra}]'")
        super().__init__(f"{package}: not installed, needed for {needed_for}; {command}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
