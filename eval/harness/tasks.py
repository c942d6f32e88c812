"""Finding and loading the harness's tasks, with one line for each way in which that fails."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from lab.errors import ConfigError, DataError, LabError, MissingPackage
from lab.files import sha256

CODE_SWITCH = "HF_ALLOW_CODE_EVAL"  # without it the metric that runs programs refuses to
BROKEN = (ValueError, KeyError, TypeError, AttributeError, RuntimeError, yaml.YAMLError)  # what bad task files raise


def task_manager(names: Sequence[str], include_path: str | None) -> Any:
    """Find the tasks, tags or groups of these names; each is loaded once, whatever the harness asks for.

    Raises: MissingPackage, ConfigError for names that are none and for files that the harness would pass over.
    """
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise MissingPackage("lm-eval", "eval.harness", "harness") from error

    class OnceLoaded(TaskManager):  # type: ignore[misc]
        """Keeps what was loaded ahead, data included, until it is asked for."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.waiting: dict[str, Any] = {}

        def load_ahead(self, name: str) -> None:
            self.waiting[name] = super().load([name])

        def load(self, task_list: Any) -> Any:
            names = list(task_list)
            ahead = self.waiting.pop(names[0], None) if len(names) == 1 else None
            return super().load(task_list) if ahead is None else ahead

    if include_path is not None:
        check_folder(Path(include_path))
    manager = OnceLoaded(include_path=include_path, include_defaults=False)
    if not all(is_complete(manager, name) for name in names):  # reading the harness's thousands takes seconds
        manager = OnceLoaded(include_path=include_path)
    faults = []
    for name in names:
        if name not in manager.all_tasks:
            near = difflib.get_close_matches(name, manager.all_tasks, n=1)
            hint = f"did you mean {near[0]}?" if near else "list them with lm-eval ls tasks, or set --include_path"
            faults.append(f"--tasks={name}: no task, tag or group of this name; {hint}")
    if faults:
        raise ConfigError(*faults)
    return manager


def check_folder(folder: Path) -> None:
    """Refuse a folder of tasks that is none, or has files that are no YAML, which the harness leaves out in silence.

    Raises: ConfigError.
    """
    if not folder.is_dir():
        raise ConfigError(f"--include_path={folder}: no such folder; give one with YAML files of tasks")
    faults = []
    for path in sorted(folder.glob("**/*.yaml")):
        try:
            yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except (OSError, yaml.YAMLError) as error:
            faults.append(f"--include_path={folder}: {path} cannot be read ({first_line(error)}); mend it")
    if faults:
        raise ConfigError(*faults)


def is_complete(manager: Any, name: str) -> bool:
    """Tell whether a name is a task that is there, or a group of such names alone; a tag may have tasks elsewhere."""
    entry = manager.task_index.get(name) if isinstance(name, str) else None
    if entry is None or entry.kind.name == "TAG":
        return False
    return entry.kind.name != "GROUP" or all(is_complete(manager, part) for part in entry.cfg["task"])


def load_tasks(manager: Any, names: Sequence[str], *, runs_code: bool) -> None:
    """Load tasks and their data before time is spent on any of them.

    Raises: LabError with a line for every task that cannot be loaded or run.
    """
    faults = []
    for name in names:
        if not runs_code and is_unsafe(manager, name):
            rule = "runs programs that the model writes; in a sandbox, add --confirm_run_unsafe_code"
            faults.append(f"--tasks={name}: {rule}")
            continue
        try:
            with as_faults(name), running_code(runs_code):
                manager.load_ahead(name)
        except LabError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError(*faults)


def is_unsafe(manager: Any, name: Any) -> bool:
    """Tell whether a task, or one of a group or tag, runs programs that the model writes."""
    entry = manager.task_index.get(name) if isinstance(name, str) else None
    if entry is None:
        return False
    return bool((entry.cfg or {}).get("unsafe_code")) or any(is_unsafe(manager, part) for part in parts_of(entry))


def parts_of(entry: Any) -> list[Any]:
    """List the tasks and groups of a group, in its order, or the tasks of a tag, by name; none of a task."""
    if entry.kind.name == "GROUP":
        return list((entry.cfg or {}).get("task", ()))
    return sorted(entry.tags) if entry.kind.name == "TAG" else []


def definition(manager: Any, name: Any) -> str:
    """Shorten what defines a task, or those of a group or tag: its file, the functions beside it, and data in files.

    A task that changes gets another definition, so that its old results are not taken for those of the new one.
    """
    entry = manager.task_index.get(name) if isinstance(name, str) else None
    settings = (entry.cfg or {}) if entry else {"inline": name}
    files = sorted(entry.yaml_path.parent.glob("*.py")) if entry and entry.yaml_path else []
    named = (settings.get("dataset_kwargs") or {}).get("data_files", ())
    files += [path for path in map(Path, texts_in(named)) if path.is_file()]
    whole = [json.dumps(settings, sort_keys=True, default=str), *map(sha256, files)]
    whole += [definition(manager, part) for part in (parts_of(entry) if entry else ())]
    return hashlib.sha256("\n".join(whole).encode()).hexdigest()[:16]


def texts_in(value: Any) -> list[str]:
    """List the texts in nested lists and dicts.

    Example:
        >>> texts_in({"test": ["a", "b"], "train": "c"})
        ['a', 'b', 'c']
    """
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for part in parts for text in texts_in(part)]


@contextmanager
def running_code(allowed: bool) -> Iterator[None]:
    """Let the metric of HumanEval run programs, which it asks the environment for."""
    before = os.environ.get(CODE_SWITCH)
    if allowed:
        os.environ[CODE_SWITCH] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(CODE_SWITCH, None)
        else:
            os.environ[CODE_SWITCH] = before


@contextmanager
def as_faults(name: str, runs: Callable[[], object] = lambda: False) -> Iterator[None]:
    """Say in one line why a task cannot be run; once it `runs`, what its own code or the model raises stays as it is.

    Raises: DataError, ConfigError.
    """
    from datasets.exceptions import DatasetsError

    try:
        yield
    except LabError:
        raise
    except ImportError as error:
        wanted = first_line(error)
        raise ConfigError(f"--tasks={name}: a package that it needs is missing ({wanted}); install it") from error
    except (OSError, DatasetsError) as error:
        where = "connect to the hub once, or put them where it looks"
        raise DataError(f"--tasks={name}: its files cannot be read ({first_line(error)}); {where}") from error
    except BROKEN as error:
        if runs():
            raise
        fault = f"the harness cannot run it ({type(error).__name__}: {first_line(error)})"
        raise ConfigError(f"--tasks={name}: {fault}; mend its files, or the options") from error


def first_line(error: BaseException) -> str:
    """Give what an error says, up to its first line's end."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
