"""Finding, loading and running the harness's tasks, with one line for each that fails."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import ScalarEvent

from lab.errors import ConfigError, LabError, MissingPackage

CODE_SWITCH = "HF_ALLOW_CODE_EVAL"  # without it the metric that runs programs refuses to
REMEDY = "check its name and files, and the options; install what it needs; connect to the hub once for its data"


def task_manager(names: Sequence[str], folder: str | None, *, run_own_code: bool) -> Any:
    """Find the tasks, tags or groups, in the user's folder alone if it has them all.

    Raises: MissingPackage; ConfigError for unknown names.
    """
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise MissingPackage("lm-eval", "eval.harness", "harness") from error

    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"--include_path={folder}: no such folder; name one with YAML files of tasks")
    if folder is not None and not run_own_code:
        refuse_code(Path(folder), Path(lm_eval.__file__).parent)
    manager = TaskManager(include_path=folder, include_defaults=False)
    below = [entry for name in names for entry in entries(manager, name)]
    if any(entry is None or entry.kind.name == "TAG" for entry in below):  # a tag may have tasks elsewhere
        manager = TaskManager(include_path=folder)  # reads thousands of the harness's own, which takes seconds
    faults = []
    for name in (name for name in names if name not in manager.all_tasks):
        near = difflib.get_close_matches(name, manager.all_tasks, n=1)
        hint = f"did you mean {near[0]}?" if near else "list them with lm-eval ls tasks, or set --include_path"
        faults.append(f"--tasks={name}: no task, tag or group of this name in a YAML file that can be read; {hint}")
    if faults:
        raise ConfigError(*faults)
    return manager


def refuse_code(folder: Path, harness: Path) -> None:
    """Refuse a folder of tasks whose YAML files, or those that they include, name code: any tag, as !function is one.

    Raises: ConfigError, which names one of the files.
    """
    left, seen = sorted(folder.rglob("*.y*ml")), set[Path]()
    while left:
        path = left.pop().resolve()
        if path in seen or harness in path.parents or not path.is_file():
            continue  # the harness's own tasks may be included
        seen.add(path)
        try:
            events = list(YAML(typ="safe", pure=True).parse(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, YAMLError) as error:
            raise ConfigError(f"--include_path={folder}: {path} cannot be read as YAML; correct the file") from error
        if any(getattr(event, "tag", None) is not None for event in events):
            rule = f"{path} names Python code (!function), which would be run"
            raise ConfigError(f"--include_path={folder}: {rule}; read it, then add --run_own_code")
        texts = [event.value for event in events if isinstance(event, ScalarEvent)]
        left += [path.parent / text for text in texts if text.endswith((".yaml", ".yml")) or "include" in texts]


def entries(manager: Any, name: Any) -> Iterator[Any]:
    """Yield the harness's index entry of a name, and of all below a group or tag; None where there is none."""
    entry: Any = manager.task_index.get(name) if isinstance(name, str) else None
    kind = entry and entry.kind.name
    yield entry
    for part in entry.cfg.get("task", ()) if kind == "GROUP" else sorted(entry.tags) if kind == "TAG" else ():
        yield from entries(manager, part)


def load_tasks(manager: Any, names: Sequence[str], *, run_unsafe_code: bool) -> dict[str, Any]:
    """Load tasks and their data before time is spent on any of them: by name, what the harness's manager returns.

    Raises: ConfigError with a line for every task that cannot be loaded or run.
    """
    loaded, faults = {}, []
    if run_unsafe_code:
        os.environ[CODE_SWITCH] = "1"
    for name in names:
        unsafe = any(entry and (entry.cfg or {}).get("unsafe_code") for entry in entries(manager, name))
        if unsafe and not run_unsafe_code:
            rule = "runs programs that the model writes; in a sandbox, add --confirm_run_unsafe_code"
            faults.append(f"--tasks={name}: {rule}")
            continue
        try:
            with as_faults(name):
                loaded[name] = manager.load([name])
        except LabError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError(*faults)
    return loaded


def evaluate(model: Any, manager: Any, name: str, loaded: Any, cache: Path, **settings: Any) -> dict[str, Any]:
    """Run a loaded task, tag or group by the harness, whose output goes to stderr; return its results.

    Raises: LabError.
    """
    from lm_eval import simple_evaluate

    tasks, group = list(loaded["tasks"].values()), loaded["groups"].get(name)
    asked = tasks if group is None else [group]
    with redirect_stdout(sys.stderr), as_faults(name, tasks):
        try:
            results: dict[str, Any] = simple_evaluate(
                model=model, tasks=asked, task_manager=manager, use_cache=str(cache), bootstrap_iters=1000, **settings
            )
        finally:
            if model.cache_hook.dbdict is not None:  # on Ctrl-C, write what the harness's thread still holds
                model.cache_hook.dbdict.close()
    return results


@contextmanager
def as_faults(name: str, tasks: Sequence[Any] = ()) -> Iterator[None]:
    """Raise one line for a task that cannot be run; once all `tasks` have their requests, other errors stay.

    Raises: ConfigError.
    """
    try:
        yield
    except LabError:
        raise
    except Exception as error:  # task files hold code, which may raise anything
        asked = tasks and all(getattr(task, "_instances", None) for task in tasks)
        if asked and not isinstance(error, AssertionError):  # how the harness refuses lengths
            raise
        fault = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]
        raise ConfigError(f"--tasks={name}: the harness cannot run it ({fault}); {REMEDY}") from error
