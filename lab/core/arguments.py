"""The settings of a command line, read and described: `--name=value`, or `NAME:parameter=value` of a method."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from lab.core.errors import ConfigError, abbreviate
from lab.core.schema import MOST, TAGS, Section, adapter, default_value, iterate_settings, read_docs, validated
from lab.core.yaml import Settings, parse_yaml

TEXTS = {  # the last parts of names whose values are text, even if they look like a number or true
    "chat_template", "corpus", "eos", "figures", "folder", "haystack", "hotpotqa", "include_path",
    "name", "path", "repository", "score", "squad", "tagger", "task", "text"
}  # fmt: skip
QUOTES = ('"', "'")


def parse_overrides(arguments: Sequence[str]) -> Settings:
    """Read `--a.b=value` and `--a.b value`; values are YAML, and true if there is none.

    Raises: ConfigError.
    Example:
        >>> parse_overrides(["--optim.lr=1e-3", "--run.name", "1e3", "--fast"])
        {'optim.lr': 0.001, 'run.name': '1e3', 'fast': True}
    """
    overrides: Settings = {}
    left = list(arguments)
    while left:
        word = left.pop(0)
        key, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise ConfigError(f"{abbreviate(word)}: not a setting; write --section.key=value")
        if key in overrides:
            raise ConfigError(f"--{key}: is repeated; keep one of them")
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


def parse_method(word: str, option: str) -> Settings:
    """Read NAME or NAME:parameter=value,... as the settings of a method; `option` names it in message lines.

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
        raise ConfigError(*(f"{option}.{message.removeprefix('--')}" for message in error.errors)) from error
    return {"method": name, **parameters}


def read_options(options_class: type[Any], settings: Mapping[str, object], errors: Sequence[str] = ()) -> Any:
    """Build a command's options from the settings; `errors` were found elsewhere on the command line.

    `64,128`, `64` and `vt,cwe` are lists where an option is a list.

    Raises: ConfigError with all errors, fields named as they are written on the command line.
    """
    values = dict(settings)
    errors = list(errors)
    for field in fields(options_class):
        if field.name in values and "tuple" in str(field.type):
            values[field.name] = as_list(values[field.name], field.name)
            if values[field.name] == []:
                errors.append(f"--{field.name}=[]: must not be empty; leave it out")
    try:
        options = validated(options_class, values)
    except ConfigError as error:
        raise ConfigError(*errors, *(f"--{message}" for message in error.errors)) from error
    if errors:
        raise ConfigError(*errors)
    return options


def split_options(options_class: type[Any], settings: Mapping[str, object]) -> tuple[Any, Settings]:
    """Build a command's own options from the settings, and return them and the other settings.

    Raises: ConfigError.
    """
    others = dict(settings)
    own = {field.name: others.pop(field.name) for field in fields(options_class) if field.name in others}
    return read_options(options_class, own), others


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


def settings_lines(
    options_class: type[Section],
    everything: bool,
    *,
    excluded: Collection[str] = (),
    prefix: str = "",
    heading: str = "",
) -> list[str]:
    """Describe settings: default, meaning and values, a method as the heading of its own.

    Settings of sections, whose names have a dot, are omitted without `everything`.
    """
    listed = [one for one in iterate_settings(options_class, prefix) if everything or "." not in one[0]]
    times = Counter(name for name, *_ in listed)
    lines = [f"\n{heading} (default; meaning):\n"] if heading and listed else []
    inside = "."
    for name, field, section, hint in listed:
        if name in excluded:
            continue
        default = default_value(field)
        default = "required" if default is MISSING else json.dumps(default, default=str)
        meaning = read_docs(section).get(field.name, "")
        indent = "  "
        if times[name] > 1 and field.name in TAGS:
            # The tag of one member of a union, which is a heading; the settings of the member follow, indented.
            inside = name.removesuffix(field.name)
            indent = "\n  "
            default = default.strip('"')
        elif name.startswith(inside):
            indent = "    "
        if field.name in TAGS and not meaning:
            meaning = str(section.__doc__)
        text = " ".join(meaning.partition("\n\n")[0].split())
        values = describe_values(adapter(hint).json_schema())
        lines.append(f"{indent}{f'--{name}={default}':<20}  {text} [{values}]")
    return lines


def describe_values(schema: Mapping[str, Any]) -> str:
    """Describe the values that a JSON schema admits.

    Example:
        >>> describe_values(adapter(int | None).json_schema()), describe_values(adapter(tuple[str, ...]).json_schema())
        ('integer, or null', 'list of: string')
    """
    if "anyOf" in schema:
        return ", or ".join(map(describe_values, schema["anyOf"]))
    if "items" in schema:
        return f"list of: {describe_values(schema['items'])}"
    if choices := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " or ".join(json.dumps(choice).strip('"') for choice in choices)
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    rules = [
        f"{sign} {schema[key]:,}".removesuffix(".0") for key, sign in signs.items() if schema.get(key, MOST) < MOST
    ]
    return f"{schema.get('type', 'any')} {' and '.join(rules)}".rstrip()
