"""Plugins: Python files whose classes join the lab's tables of methods and corpora.

A class joins the table of the base class that it derives from, under its tag:

    FrequencyMethod, Distance   `method: mine`, in position.frequency, position.distance
    WindowMask, Skip, Evidence  `method: mine`, in mask, skip, evidence
    Softmax, OwnMeasure         `method: mine`, in model.softmax, probe.measure
    OwnCorpus                   `name: mine`, in data.corpus

A config names the files, `plugins: [my_method.py]`. A run keeps a copy of them in its folder. Such a copy is executed
only where the same source was loaded before, or where `--trust` says so. An installed package names modules under the
entry point group `probe_lab`, and they are loaded by every command.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from lab.errors import ConfigError, first_line
from lab.schema.sections import OneOf, Section, adapter

GROUP = "probe_lab"  # of entry points
KEPT = "plugins"  # folder in a run, with the copies of its plugins
TRUSTED: ContextVar[bool] = ContextVar("TRUSTED", default=False)  # whether copies in runs are executed
LOADED: dict[str, ModuleType] = {}  # by the digest of their source


def load_plugin(path: Path) -> None:
    """Execute a plugin and add its classes to their tables; a source that is loaded already is not executed again.

    Raises: ConfigError for a file that cannot be read or fails, adds nothing, or adds a name that is taken.
    """
    digest = digest_of(path)
    if digest in LOADED:
        return
    name = f"{GROUP}_plugin_{digest[:16]}"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if spec is None or spec.loader is None:
        raise ConfigError(f"plugins={path}: must be a Python file; name one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # by which the types of its fields are found
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a user's code raises
        del sys.modules[name]
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"plugins={path}: {type(error).__name__}{line} ({first_line(error)}); correct it") from error
    add_classes(module, f"plugins={path}")
    for _, section in classes_of(module):
        section.plugin = digest
        section.__reduce__ = reduced  # type: ignore[method-assign,assignment]
    LOADED[digest] = module


def load_plugins(names: object, run: Path | None = None) -> None:
    """Load the plugins that a config names, if any; of a `run`, the copies in its folder, which must be trusted."""
    load_installed()
    listed = names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []
    for name in listed:  # anything else is refused with the other settings
        copy = None if run is None else run / KEPT / Path(name).name
        if copy is not None and not TRUSTED.get() and digest_of(copy) not in LOADED:
            rule = "is code that the run was trained with, and it would be executed; read it, then add --trust"
            raise ConfigError(f"{copy}: {rule} (in Python: lab.load_plugin)")
        load_plugin(Path(name) if copy is None else copy)


@cache
def load_installed() -> None:
    """Load the plugins of installed packages."""
    for entry in entry_points(group=GROUP):
        try:
            module = entry.load()
        except Exception as error:
            rule = f"{type(error).__name__} ({first_line(error)}); correct or uninstall the package"
            raise ConfigError(f"{entry.value}: the entry point {entry.name} of {GROUP} fails, {rule}") from error
        add_classes(module, entry.value)


def add_classes(module: ModuleType, field: str) -> None:
    """Add a module's classes to their tables, refusing a module of none, and tags that are taken."""
    found = [(kind, section, getattr(section, kind.tag)) for kind, section in classes_of(module)]
    bases = ", ".join(kind.base.__name__ for kind in OneOf.every)
    if not found:
        raise ConfigError(f"{field}: defines no method, corpus or measure; derive a class from one of {bases}")
    for kind, _, tag in found:
        if tag in kind.table:
            place = sys.modules[kind.table[tag].__module__].__file__
            raise ConfigError(f"{field}: {kind.tag}: {tag} is taken by {place}; name it otherwise")
    for kind, section, tag in found:
        kind.table[tag] = section
    adapter.cache_clear()


def classes_of(module: ModuleType) -> Iterator[tuple[OneOf, type[Section]]]:
    """Yield the methods that a module defines, each with its table; classes without a tag are bases of others."""
    package = module.__name__.partition(".")[0]
    for section in {value for value in vars(module).values() if isinstance(value, type)}:
        if section.__module__.partition(".")[0] == package:
            for kind in OneOf.every:
                if issubclass(section, kind.base) and isinstance(getattr(section, kind.tag), str):
                    yield kind, section


def reduced(self: Section) -> Any:
    """Pickle an object of a plugin's class: for a process that has not loaded the plugin, with its file."""
    return restored, (str(sys.modules[type(self).__module__].__file__), type(self).__name__, vars(self))


def restored(path: str, name: str, state: dict[str, Any]) -> Any:
    """Rebuild an object of a plugin's class in another process."""
    load_plugin(Path(path))
    section = getattr(LOADED[digest_of(Path(path))], name)
    out = object.__new__(section)
    vars(out).update(state)
    return out


def digest_of(path: Path) -> str:
    """Compute the SHA-256 of a plugin's source, in hex digits."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"plugins={path}: cannot be read ({error.strerror}); name a Python file") from error
