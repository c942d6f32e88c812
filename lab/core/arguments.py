"""The settings of a command line: `--name=value`, whose values are YAML, and `NAME:parameter=value` of a method."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from lab.core.errors import ConfigError, abbreviate
from lab.core.schema import validated
from lab.core.yaml import parse_yaml

TEXTS = {  # the last parts of names whose values are text, even if they look like a number or true
    "chat_template", "corpus", "eos", "evaluator", "figures", "folder", "haystack", "hotpotqa", "include_path",
    "name", "path", "repository", "score", "squad", "tagger", "text"
}  # fmt: skip
QUOTES = ('"', "'")


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Read `--a.b=value` and `--a.b value`; values are YAML, and true if there is none.

    Raises: ConfigError.
    Example:
        >>> parse_overrides(["--optim.lr=1e-3", "--run.name", "1e3", "--fast"])
        {'optim.lr': 0.001, 'run.name': '1e3', 'fast': True}
    """
    overrides: dict[str, Any] = {}
    left = list(arguments)
    while left:
        word = left.pop(0)
        key, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise ConfigError(f"{abbreviate(word)}: not a setting; write --section.key=value")
        if key in overrides:
            raise ConfigError(f"--{key}: is given twice; keep one of them")
        # data.corpus is a section, and the option --corpus of a measure is a path.
        is_text = key.rpartition(".")[2] in TEXTS and key != "data.corpus"
        if not equals and left and not left[0].startswith("--"):
            text = left.pop(0)
        elif not equals and not is_text:
            text = "true"
        if is_text and not text:
            raise ConfigError(f"--{key}=: must not be empty; write --{key}=VALUE, or leave it out")
        if is_text and text != "null" and not text.startswith(QUOTES):
            overrides[key] = text
        else:
            overrides[key] = parse_value(text, f"--{abbreviate(key)}")
    return overrides


def parse_value(text: str, name: str) -> Any:
    """Read an option's value as YAML; text without quotes is kept as it is.

    Raises: ConfigError, also for what YAML would cut off as a comment.
    Example:
        >>> parse_value("1e-3", "--x"), parse_value("a #b", "--x"), parse_value('"a"', "--x")
        (0.001, 'a #b', 'a')
    """
    value = parse_yaml(text, name)
    if isinstance(value, str) and not text.startswith(QUOTES):
        return text
    if " #" in text and not isinstance(value, str):
        raise ConfigError(f"{name}={abbreviate(text)}: YAML takes what follows # for a comment; leave it out")
    return value


def parse_method(word: str, option: str) -> dict[str, Any]:
    """Read NAME or NAME:parameter=value,... as the settings of a method; `option` names it in fault lines.

    Raises: ConfigError.
    Example:
        >>> parse_method("string:shift=64,window=32", "--distance")
        {'method': 'string', 'shift': 64, 'window': 32}
    """
    name, _, text = word.partition(":")
    if not name:
        raise ConfigError(
            f"{option}={abbreviate(word)}: must be NAME or NAME:parameter=value,...; write string:shift=64,window=32"
        )
    try:
        parameters = parse_overrides([f"--{part}" for part in text.split(",") if part])
    except ConfigError as error:
        raise ConfigError(*(f"{option}.{fault.removeprefix('--')}" for fault in error.faults)) from error
    return {"method": name, **parameters}


def read_options(options_class: type[Any], settings: Mapping[str, Any], faults: Sequence[str] = ()) -> Any:
    """Build a command's options from the settings; `faults` were found elsewhere on the command line.

    `64,128`, `64` and `vt,cwe` are lists where an option is a list.

    Raises: ConfigError with all faults, fields named as they are written on the command line.
    """
    values = dict(settings)
    faults = list(faults)
    for field in fields(options_class):
        if field.name in values and "tuple" in str(field.type):
            values[field.name] = as_list(values[field.name], field.name)
            if values[field.name] == []:
                faults.append(f"--{field.name}=[]: must not be empty; leave it out")
    try:
        options = validated(options_class, values)
    except ConfigError as error:
        raise ConfigError(*faults, *(f"--{fault}" for fault in error.faults)) from error
    if faults:
        raise ConfigError(*faults)
    return options


def as_list(value: Any, name: str) -> Any:
    """Read one word or number, or several between commas, as a list.

    Example:
        >>> as_list("64,128", "n"), as_list(64, "n"), as_list("vt, cwe", "tasks")
        ([64, 128], [64], ['vt', 'cwe'])
    """
    if value is None or isinstance(value, list | dict):
        return value
    if isinstance(value, str):
        return parse_yaml(f"[{value}]", f"--{name}")
    return [value]
