"""The command of a sweep file, its macros replaced as wandb's agent replaces them, and its lab.fit settings.

Source: wandb 0.31, wandb_agent.py and sdk/launch/sweeps/utils.py; ${interpreter} is this Python instead of `python`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from lab.command import Syntax
from lab.errors import ConfigError
from lab.parsing import parse_yaml
from lab.sweep.space import Settings

MACRO, VARIABLE = re.compile(r"\$\{(\w+)\}"), re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")
PLAIN = re.compile(r"[A-Za-z./][\w./-]*")  # text that may need no quotes
FIT = (("-m", "lab.fit"), ("probe-lab", "fit"))
FORM = '["${env}", "${interpreter}", -m, lab.fit, CONFIG, --resume, --run.name=auto, "${args}"]'
SYNTAX = Syntax(flags=("--resume",), missing=f"command: names no CONFIG after lab.fit; write {FORM}")
FOR_WANDB = ("track.wandb", "track.project")  # settings that a sweep's command has for wandb's agents


class FitCommand(NamedTuple):
    """A command of lab.fit: the words that start it, its config and its settings."""

    start: list[str]
    config: Path
    settings: Settings


def expand(command: Sequence[Any], program: str | None, settings: Settings) -> list[str]:
    """Replace the macros of a command.

    Raises: ConfigError for a macro that wandb drops, or whose file only wandb's agent writes.
    """
    macros = macros_of(program, settings)
    words: list[str] = []
    for item in command:
        word = VARIABLE.sub(lambda found: os.environ.get(found[1], found[1]), str(item))
        macro = MACRO.fullmatch(word)
        if macro is None:
            words.append(word)
        elif macro[1] in macros:
            words += macros[macro[1]]
        else:
            raise ConfigError(f"command={word}: unknown; use one of ${{{'}, ${'.join(macros)}}}")
    return words


def macros_of(program: str | None, settings: Settings) -> Mapping[str, list[str]]:
    """Map the names of the macros to the words they become."""
    pairs = {key: f"{key}={value}" for key, value in settings.items()}
    given = [key for key, value in settings.items() if value is not False]
    return {
        "env": ["/usr/bin/env"],
        "interpreter": [sys.executable],
        "program": [program or ""],
        "args": [f"--{pair}" for pair in pairs.values()],
        "args_no_equals": [word for key, value in settings.items() for word in (f"--{key}", str(value))],
        "args_no_hyphens": list(pairs.values()),
        "args_no_boolean_flags": [f"--{key if settings[key] is True else pairs[key]}" for key in given],
        "args_json": [json.dumps(settings)],
        "args_append_hydra": [f"+{pair}" for pair in pairs.values()],
        "args_override_hydra": [f"++{pair}" for pair in pairs.values()],
    }


def read_command(words: Sequence[str]) -> FitCommand:
    """Find the config and settings that a command passes to lab.fit, without those for wandb's agents.

    Raises: ConfigError where it does not start lab.fit.
    """
    at = [n for n, (one, two) in enumerate(pairwise(words), start=2) if (Path(one).name, two) in FIT]
    if not at:
        raise ConfigError(f"command={' '.join(words)}: must start lab.fit, whose settings name the runs; write {FORM}")
    read = SYNTAX.read(words[at[0] :])
    settings = {key: value for key, value in read.settings.items() if key not in FOR_WANDB}
    return FitCommand(list(words[: at[0]]), Path(read.places[0]), settings)


def write_command(command: FitCommand) -> list[str]:
    """Write a command that starts or resumes the run."""
    return [*command.start, str(command.config), "--resume", *map(setting, command.settings.items())]


def setting(item: tuple[str, Any]) -> str:
    """Write a setting as a word that reads back to the same value.

    Example:
        >>> setting(("run.name", "auto")), setting(("run.name", "7")), setting(("mask", {"chunks": None}))
        ('--run.name=auto', '--run.name="7"', '--mask={"chunks": null}')
    """
    key, value = item
    is_plain = isinstance(value, str) and PLAIN.fullmatch(value) is not None and parse_yaml(value, key) == value
    return f"--{key}={value if is_plain else json.dumps(value)}"
