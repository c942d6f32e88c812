"""Plugins: Python files whose classes join the lab's tables of methods and corpora.

A class joins the table of the base class that it derives from, under its tag:

    FrequencyMethod, Distance   `method: mine`, in position.frequency, position.distance
    WindowMask, Skip, Evidence  `method: mine`, in mask, skip, evidence
    OwnCorpus                   `name: mine`, in data.corpus

`plugins: [my_method.py]` names the files. Those that a command line names are executed. Those that a file names (a
config, a sweep's, a run's or an export's) are executed only where the same source was loaded before, or with `--trust`,
as the file may be somebody else's. Runs and exports keep copies of plugins, which are executed in their place.
"""

import hashlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

from lab.core.errors import ConfigError, first_line
from lab.core.schema import OneOf, Section, adapter

KEPT = "plugins"  # folder in a run or an export, with the copies of its plugins
TRUSTED: ContextVar[bool] = ContextVar("TRUSTED", default=False)  # whether code that files name is executed
LOADED: dict[str, ModuleType] = {}  # by the digest of their source


def load_plugin(path: Path) -> None:
    """Execute a plugin and add its classes to their tables; a source that is loaded already is not executed again.

    Raises: ConfigError for a file that cannot be read or fails, adds nothing, or adds a name that is taken; or that has
        the name of one of Python's own modules.
    """
    if path.stem in sys.stdlib_module_names:
        rule = f"would take the place of Python's own module {path.stem} for programs started in its folder"
        raise ConfigError(f"plugins={path}: {rule}; rename it, as my_{path.name}")
    digest = hash_plugin(path)
    if digest in LOADED:
        return
    name = f"probe_lab_plugin_{digest[:16]}"
    # dataclasses and pydantic look up the types of fields in sys.modules.
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path.absolute())
    try:
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
    except Exception as error:  # a user's code can raise anything
        del sys.modules[name]
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"plugins={path}: {type(error).__name__}{line} ({first_line(error)}); correct it") from error
    add_classes(module, f"plugins={path}", digest)
    LOADED[digest] = module


def load_plugins(names: object, file: str | None = None, folder: Path | None = None) -> None:
    """Load the plugins that `names` lists, if any: those of a command line, or of a `file`, which must be trusted.

    A `folder` has copies, which are executed in their place.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return  # rejected later, with the other settings
    for name in names:
        path = Path(name) if folder is None else folder / KEPT / Path(name).name
        if file is not None and hash_plugin(path) not in LOADED and not TRUSTED.get():
            rule = f"is code that {file} names, and would be executed"
            raise ConfigError(f"{path}: {rule}; read it, then add --trust (in Python: lab.load_plugin)")
        load_plugin(path)


def add_classes(module: ModuleType, field: str, digest: str) -> None:
    """Add a module's classes to their tables; reject a module without any, and tags that are taken."""
    classes = [(union, section, getattr(section, union.tag)) for union, section in find_classes(module)]
    bases = ", ".join(union.base.__name__ for union in OneOf.every)
    if not classes:
        raise ConfigError(f"{field}: defines no method, corpus or measure; derive a class from one of {bases}")
    for union, _, tag in classes:
        if tag in union.table:
            file = sys.modules[union.table[tag].__module__].__file__
            raise ConfigError(f"{field}: {union.tag}: {tag} is taken by {file}; name it otherwise")
    for union, section, tag in classes:
        union.table[tag] = section
        section.plugin = digest
    # pydantic's validators contain the classes that the tables held when they were built.
    adapter.cache_clear()


def find_classes(module: ModuleType) -> Iterator[tuple[OneOf, type[Section]]]:
    """Yield the methods that a module defines, each with its table; classes without a tag are bases of others."""
    for section in {value for value in vars(module).values() if isinstance(value, type)}:
        if section.__module__ == module.__name__:
            for union in OneOf.every:
                if issubclass(section, union.base) and isinstance(getattr(section, union.tag), str):
                    yield union, section


def hash_plugin(path: Path) -> str:
    """Compute the SHA-256 of a plugin's source, in hex digits."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"plugins={path}: cannot be read ({error.strerror}); name a Python file") from error
