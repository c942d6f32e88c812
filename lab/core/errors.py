"""Errors shown to users, one line each: field, value, the rule it breaks, what to do."""

import difflib
import json
from collections.abc import Collection, Mapping
from typing import TypeVar

T = TypeVar("T")

LONGEST_SHOWN = 80  # characters of a value in an error's line
LONGEST_NAME, LONGEST_PATH = 200, 4000  # bytes; file systems allow 255, of which temporary names take some, and 4095


class LabError(Exception):
    """Base of every error that the user can correct; commands print it and exit with status 2."""


class ConfigError(LabError, ValueError):
    """A setting is unknown, of the wrong type, out of range, contradictory or ignored; `errors` has a line for each."""

    def __init__(self, *errors: str) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


class DataError(LabError):
    """Text, shards or tokens cannot be read."""


class CheckpointError(LabError):
    """A checkpoint or a run folder is missing, corrupt or belongs to another run."""


class DiskError(LabError):
    """A disk is full, or fails."""


class InUse(LabError):
    """Another process writes to the same folder."""


class PeerError(LabError):
    """Another process of the same run has failed, or cannot be reached."""


class MissingPackage(LabError):
    """An optional package is missing; `extra` is the extra in pyproject.toml that installs it."""

    def __init__(self, package: str, needed_for: str, extra: str) -> None:
        command = f"pip install -e '.[{extra}]'"
        if package == "flash_attn":  # built from source, against the installed torch, which isolated builds do not see
            command = "pip install --no-build-isolation flash-attn"
        super().__init__(f"{package}: not installed, needed for {needed_for}; {command}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def abbreviate(value: object) -> str:
    r"""Write a value for an error's line, without the middle of a long one.

    Example:
        >>> abbreviate([1, 2]), abbreviate("abc"), abbreviate("a\nb"), abbreviate("x" * 5000)
        ('[1, 2]', 'abc', '"a\\nb"', 'xxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxx (5,000 characters)')
    """
    text = str(value)
    if isinstance(value, dict | list | tuple) or not text.isprintable():
        text = json.dumps(value, default=str)
    if len(text) > LONGEST_SHOWN:
        text = f"{text[:24]}...{text[-24:]} ({len(text):,} characters)"
    return text


def is_short(path: object) -> bool:
    """Return whether file systems can hold a path, and a line can show it."""
    text = str(path).encode("utf-8", "replace")
    fits = len(text) <= LONGEST_PATH and max(map(len, text.split(b"/"))) <= LONGEST_NAME
    return fits and str(path).isprintable()


def is_plain_name(name: object) -> bool:
    """Return whether a name is that of a file or folder in another, and leads nowhere else.

    Example:
        >>> [is_plain_name(name) for name in ("a", "a.b", "", "..", "a/b", 3)]
        [True, True, False, False, False, False]
    """
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and is_short(name)


def suggest(word: str, names: Collection[str]) -> str:
    """Suggest the nearest of some names in place of an unknown word, or list all."""
    for name in difflib.get_close_matches(word, names, n=1):
        return f"did you mean {name}?"
    return f"use one of: {', '.join(names)}"


def look_up(methods: Mapping[str, T], method: str, field: str) -> T:
    """Return the method of a name; suggest the nearest name for an unknown one, or list all."""
    if method not in methods:
        raise ConfigError(f"{field}={method}: unknown method; {suggest(method, methods)}")
    return methods[method]
