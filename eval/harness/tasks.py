"""Finding, loading and running the harness's tasks, with one line for each way in which that fails."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import yaml

from eval.harness.options import HarnessOptions
from lab.errors import CheckpointError, ConfigError, DataError, LabError, MissingPackage
from lab.files import sha256

CODE_SWITCH = "HF_ALLOW_CODE_EVAL"  # without it the metric that runs programs refuses to
BROKEN = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, yaml.YAMLError)  # what bad task files raise
RESAMPLES = 1000  # of a metric's documents, for the standard error of those that have no formula


def task_manager(names: Sequence[str], include_path: str | None) -> Any:
    """Find the tasks, tags or groups of these names.

    Raises: MissingPackage, ConfigError for unknown names and for files that the harness would pass over.
    """
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise MissingPackage("lm-eval", "eval.harness", "harness") from error

    if include_path is not None:
        check_folder(Path(include_path))
    manager = TaskManager(include_path=include_path, include_defaults=False)
    if not all(is_complete(manager, name) for name in names):  # reading the harness's thousands takes seconds
        manager = TaskManager(include_path=include_path)
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
    """Refuse a folder that does not exist, or has files that are not YAML, which the harness leaves out silently.

    Raises: ConfigError.
    """
    if not folder.is_dir():
        raise ConfigError(f"--include_path={folder}: no such folder; name one with YAML files of tasks")
    faults = []
    for path in sorted(folder.glob("**/*.yaml")):
        try:
            yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except (OSError, yaml.YAMLError) as error:
            faults.append(f"--include_path={folder}: {path} cannot be read ({first_line(error)}); correct it")
    if faults:
        raise ConfigError(*faults)


def entry_of(manager: Any, name: Any) -> Any:
    """Look up a name in the harness's index; None where there is none, or the task is written out in its group."""
    return manager.task_index.get(name) if isinstance(name, str) else None


def parts_of(entry: Any) -> list[Any]:
    """List the tasks and groups of a group, in its order, or the tasks of a tag, by name; none of a task."""
    if entry.kind.name == "GROUP":
        return list((entry.cfg or {}).get("task", ()))
    return sorted(entry.tags) if entry.kind.name == "TAG" else []


def entries(manager: Any, name: Any) -> Iterator[Any]:
    """Yield the entry of a name and of all below it."""
    entry = entry_of(manager, name)
    yield entry
    for part in parts_of(entry) if entry else ():
        yield from entries(manager, part)


def is_complete(manager: Any, name: str) -> bool:
    """Check that a name is a task that is there, or a group of such names alone; a tag may have tasks elsewhere."""
    return all(entry is not None and entry.kind.name != "TAG" for entry in entries(manager, name))


def is_unsafe(manager: Any, name: str) -> bool:
    """Check whether a task, or one of a group or tag, runs programs that the model writes."""
    return any(entry is not None and bool((entry.cfg or {}).get("unsafe_code")) for entry in entries(manager, name))


def definition(manager: Any, name: Any) -> str:
    """Hash what defines a task, or those of a group or tag: its file, the functions beside it, and data in files.

    A task that changes gets another definition, so that its old results are not taken for those of the new one.
    """
    entry = entry_of(manager, name)
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


def load_tasks(manager: Any, names: Sequence[str], *, runs_code: bool) -> dict[str, Any]:
    """Load tasks and their data before time is spent on any of them: by name, what the harness's manager returns.

    Raises: LabError with a line for every task that cannot be loaded or run.
    """
    loaded, faults = {}, []
    for name in names:
        if not runs_code and is_unsafe(manager, name):
            rule = "runs programs that the model writes; in a sandbox, add --confirm_run_unsafe_code"
            faults.append(f"--tasks={name}: {rule}")
            continue
        try:
            with as_faults(name), running_code(runs_code):
                loaded[name] = manager.load([name])
        except LabError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError(*faults)
    return loaded


def evaluate(
    model: Any, manager: Any, name: str, loaded: Mapping[str, Any], cache: Path, options: HarnessOptions
) -> dict[str, Any]:
    """Have the harness run a loaded task, tag or group; what it prints goes to stderr.

    Raises: LabError.
    """
    from lm_eval import simple_evaluate

    tasks, group = list(loaded["tasks"].values()), loaded["groups"].get(name)
    seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
    runs_code = options.confirm_run_unsafe_code
    with redirect_stdout(sys.stderr), as_faults(name, tasks), running_code(runs_code):
        with closing(sqlite3.connect(f"{cache}_rank0.db")) as database:
            database.execute("PRAGMA schema_version")  # a broken file fails here, not in the harness's own thread
        results: dict[str, Any] = simple_evaluate(
            model=model,
            tasks=tasks if group is None else [group],
            task_manager=manager,
            use_cache=str(cache),
            bootstrap_iters=RESAMPLES,
            confirm_run_unsafe_code=runs_code,
            apply_chat_template=model.chat is not None,
            num_fewshot=options.num_fewshot,
            limit=options.limit,
            **dict.fromkeys(seeds, options.seed),
        )
    return results


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
def as_faults(name: str, tasks: Sequence[Any] = ()) -> Iterator[None]:
    """Raise one line for a task that cannot be run; once all `tasks` have their requests, other errors stay.

    Raises: DataError, ConfigError, CheckpointError for a broken cache.
    """
    from datasets.exceptions import DatasetsError

    try:
        yield
    except LabError:
        raise
    except sqlite3.Error as error:
        raise CheckpointError(f"finished requests: cannot be read or written ({error}); delete their .db") from error
    except ImportError as error:
        wanted = first_line(error)
        raise ConfigError(f"--tasks={name}: a package that it needs is missing ({wanted}); install it") from error
    except (OSError, DatasetsError) as error:
        where = "connect to the hub once, or put them where it looks"
        raise DataError(f"--tasks={name}: its files cannot be read ({first_line(error)}); {where}") from error
    except BROKEN as error:
        if tasks and all(task.instances for task in tasks):
            raise
        fault = f"the harness cannot run it ({type(error).__name__}: {first_line(error)})"
        raise ConfigError(f"--tasks={name}: {fault}; correct its files, or the options") from error


def first_line(error: BaseException) -> str:
    """Return an error's message up to its first line's end."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
