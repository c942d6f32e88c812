"""Read settings: a YAML file, dotted overrides, and one line with a remedy per fault.

Pydantic checks types and ranges; this file turns its errors into `dotted.field=value: rule; remedy`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from pydantic import TypeAdapter, ValidationError

from lab.errors import ConfigError
from lab.parsing import DEEPEST, LARGEST, parse_yaml
from lab.schema import RULES, as_written, brief, field_docs, nearest, sections_of, values_of

TAGS = ("name", "method")  # keys that select a member of a tagged union
KINDS = {  # beginnings of pydantic's error types
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dataclass": "a section",
    "model": "a section",
    "dict": "a section",
}
UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")  # pydantic's errors of a key that is no setting
MOST_FAULTS = 20  # looked into; each costs a search for the nearest name
LONGEST_NAME = 200  # characters of a dotted setting
reader: Any = cache(TypeAdapter)  # of a config class; building one takes longer than reading


def part(values: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a section, empty where it is missing or null."""
    found = values.get(key)
    return found if isinstance(found, dict) else {}


@dataclasses.dataclass
class Raw:
    """Settings as nested dicts, before they are checked, and the file they were read from."""

    values: dict[str, Any]
    source: str

    @classmethod
    def read(cls, path: Path) -> Raw:
        """Read a YAML file of sections, or a config of the lab by its name.

        Raises: ConfigError for a missing file or one that is not a mapping.
        """
        path = find_config(path)
        try:
            with path.open("rb") as file:
                text = file.read(4 * LARGEST + 1).decode("utf-8")  # of a device without an end, too
        except (OSError, ValueError) as error:  # not UTF-8, or a name with a NUL
            reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
            raise ConfigError(f"{path}: {reason}; use a YAML config, for instance one of configs/") from error
        values = parse_yaml(text, str(path))
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: must hold sections (model:, data:, train:, ...); see configs/")
        return cls(values, str(path))

    def override(self, overrides: dict[str, Any]) -> None:
        """Set dotted keys.

        Changing the tag of a union drops the keys of the member that was there. Raises: ConfigError.
        """
        order = sorted(overrides, key=lambda key: key.split(".")[-1] not in TAGS)
        for dotted in order:
            *parents, last = dotted.split(".")
            node = self.values
            for parent in parents:
                if not isinstance(node.get(parent), dict):
                    node[parent] = {}
                node = node[parent]
            if len(parents) > 1 and last in TAGS and node.get(last) != overrides[dotted]:
                node.clear()
            node[last] = overrides[dotted]


def find_config(path: Path) -> Path:
    """Return the path of a config; a name that is no file is that of a config that comes with the lab.

    Example:
        >>> find_config(Path("cpu_demo")).name, find_config(Path("elsewhere.yaml")).name
        ('cpu_demo.yaml', 'elsewhere.yaml')
    """
    packed = Path(f"{files('lab') / 'configs' / str(path)}.yaml")
    return packed if os.path.isfile(packed) and not os.path.exists(path) else path


def parse_overrides(arguments: Sequence[str], bare: Sequence[str] = ()) -> dict[str, Any]:
    """Read `--a.b=value` and `--a.b value`; values are YAML, and settings in `bare` are true without one.

    Raises: ConfigError.
    Example:
        >>> parse_overrides(["--optim.lr=1e-3", "--run.name", "x", "--fast"], ["fast"])
        {'optim.lr': 0.001, 'run.name': 'x', 'fast': True}
    """
    overrides: dict[str, Any] = {}
    left = list(arguments)
    while left:
        word = left.pop(0)
        if not word.startswith("--"):
            raise ConfigError(f"{word}: not a setting; write --section.key=value")
        key, equals, text = word[2:].partition("=")
        if not equals and (not left or left[0].startswith("--")):
            if key not in bare:
                raise ConfigError(f"--{key}: has no value; write --{key}=value")
            text = "true"
        elif not equals:
            text = left.pop(0)
        if len(key) > LONGEST_NAME or key.count(".") > DEEPEST:
            raise ConfigError(f"--{brief(key)}: no setting has so long a name; --help=all lists them")
        if key in overrides:
            raise ConfigError(f"--{key}: is given twice; keep one of them")
        overrides[key] = parse_yaml(text, f"--{key}")
    return overrides


def parse_method(word: str, option: str) -> dict[str, Any]:
    """Read NAME or NAME:parameter=value,... as the settings of a method; `option` names it in fault lines.

    Raises: ConfigError.
    Example:
        >>> parse_method("string:shift=64,window=32", "--distance")
        {'method': 'string', 'shift': 64, 'window': 32}
    """
    name, colon, text = word.partition(":")
    parts = [part.partition("=") for part in text.split(",")] if colon else []
    if not name or not all(key and value for key, _, value in parts):
        raise ConfigError(
            f"{option}={brief(word)}: must be NAME or NAME:parameter=value,...; write string:shift=64,window=32"
        )
    twice = [key for place, (key, *_) in enumerate(parts) if key in ("method", *(other for other, *_ in parts[:place]))]
    if twice:
        raise ConfigError(f"{option}={brief(word)}: sets {twice[0]} twice; keep one of them")
    return {"method": name, **{key: parse_yaml(value, f"{option}={brief(word)}") for key, _, value in parts}}


def validated(root: type[Any], raw: Raw) -> Any:
    """Build the config class from raw settings.

    Raises: ConfigError with one line for every fault found, unknown settings first, as others may be missing for them.
    """
    text = json.dumps(raw.values, default=str)
    try:
        return reader(root).validate_json(text, strict=True)
    except ValidationError as error:
        found = sorted(error.errors(include_url=False), key=lambda item: item["type"] not in UNKNOWN)[:MOST_FAULTS]
        lines = [line for item in found for line in fault_lines(root, raw, item)]
        raise ConfigError(*dict.fromkeys(lines)) from None


def fault_lines(root: type[Any], raw: Raw, item: Any) -> Iterator[str]:
    """Convert one of pydantic's errors to lines for the user."""
    keys = drop_tags(item["loc"], raw.values)
    dotted = ".".join(str(key) for key in keys)
    kind, context = item["type"], item.get("ctx", {})
    if kind == "value_error":  # a rule of a section, whose lines begin with the field
        prefix = f"{dotted}." if dotted else ""
        for line in getattr(context["error"], "faults", [str(context["error"])]):
            yield prefix + line
        return
    shown = as_written(look_up(raw.values, keys))
    if kind in UNKNOWN:
        yield f"{dotted}={shown}: unknown setting; {suggestion(root, raw.values, keys)}"
    elif kind in ("missing", "missing_argument"):
        yield f"{dotted}: must be set; {remedy(root, raw.values, keys)}"
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = context.get("tag", "")
        hint = nearest(str(tag), context.get("expected_tags", "").replace("'", "").split(", "))
        yield f"{dotted}.{str(context['discriminator']).strip(chr(39))}={brief(tag)}: unknown; {hint}"
    else:
        yield f"{dotted}={shown}: {rule_of(item)}; {remedy(root, raw.values, keys)}"


def rule_of(item: Any) -> str:
    """Describe the rule that a value breaks."""
    context = item.get("ctx", {})
    for key, sign in RULES.values():
        if key in context:
            bound = context[key]
            return f"must be {sign} {int(bound) if bound == int(bound) else bound}"
    if item["type"] == "literal_error":
        return f"must be one of {context['expected']}"
    if item["type"] == "finite_number":
        return "must be finite"
    for start, words in KINDS.items():
        if item["type"].startswith(start):
            return f"must be {words}"
    return str(item["msg"]).lower()


def drop_tags(location: Sequence[Any], values: Any) -> list[Any]:
    """Remove the union tags and the names of union members that pydantic puts into an error's location."""
    keys: list[Any] = []
    for key in location:
        tag = isinstance(values, dict) and key not in values and key in [values.get(name) for name in TAGS]
        if tag or (isinstance(key, str) and (not isinstance(values, dict)) and not isinstance(values, list)):
            continue
        keys.append(key)
        if isinstance(values, dict):
            values = values.get(key)
        elif isinstance(values, list) and isinstance(key, int) and key < len(values):
            values = values[key]
    return keys


def look_up(values: Any, keys: Sequence[Any]) -> Any:
    """Return the value at a location, or None."""
    for key in keys:
        try:
            values = values[key]
        except (KeyError, IndexError, TypeError):
            return None
    return values


def section_at(root: type[Any], values: Any, keys: Sequence[Any]) -> type[Any] | None:
    """Return the config class that has the last key as a field."""
    current: type[Any] = root
    for key in keys[:-1]:
        hints = get_type_hints(current, include_extras=True)
        if key not in hints:
            return None
        values = values.get(key) if isinstance(values, dict) else None
        options = sections_of(hints[key])
        tags = [values.get(name) for name in TAGS] if isinstance(values, dict) else []
        chosen = [o for o in options if len(options) == 1 or any(tag_of(o) == tag for tag in tags)]
        if not chosen:
            return None
        current = chosen[0]
    return current


def tag_of(section: type[Any]) -> Any:
    """Read the tag of a member of a tagged union."""
    defaults = {f.name: f.default for f in dataclasses.fields(section)}
    return defaults.get("method", defaults.get("name"))


def suggestion(root: type[Any], values: Any, keys: Sequence[Any]) -> str:
    """Suggest a valid setting in place of an unknown one: the nearest, or the list."""
    section = section_at(root, values, keys)
    prefix = ".".join(str(key) for key in keys[:-1])
    prefix += "." if prefix else ""
    if section is None:
        return "see --help=all"
    names = [f.name for f in dataclasses.fields(section)]
    near = difflib.get_close_matches(str(keys[-1]), names, n=1)
    if near:
        return f"did you mean {prefix}{near[0]}?"
    own = ".".join(str(key) for key in keys)
    everywhere = {setting.name.split(".")[-1]: setting.name for setting in reversed(all_settings(root))}
    far = difflib.get_close_matches(str(keys[-1]), everywhere, n=1)
    if far and everywhere[far[0]] != own:  # for a setting of another union member, list this member's own
        return f"did you mean {everywhere[far[0]]}?"
    return f"{prefix.rstrip('.') or 'a config'} has {', '.join(names)}"


def remedy(root: type[Any], values: Any, keys: Sequence[Any]) -> str:
    """Return the meaning of a setting, as the remedy."""
    names = [key for key in keys if isinstance(key, str)]
    section = section_at(root, values, names)
    text = field_docs(section).get(names[-1], "") if section else ""
    return " ".join(text.split()).rstrip(".") or "see --help=all"


class Setting(NamedTuple):
    """A setting as help and docs/settings.md list it."""

    name: str
    default: str
    values: str
    meaning: str


def all_settings(root: type[Any], prefix: str = "") -> list[Setting]:
    """List every setting under its dotted name, the members of tagged unions in turn."""
    out = []
    hints = get_type_hints(root, include_extras=True)
    for item in sorted(dataclasses.fields(root), key=lambda item: item.name not in TAGS):
        sections = sections_of(hints[item.name])
        for section in sections:
            out += all_settings(section, f"{prefix}{item.name}.")
        if not sections:
            default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
            default = "required" if default is dataclasses.MISSING else json.dumps(default, default=str)
            meaning = field_docs(root).get(item.name) or (str(root.__doc__) if item.name in TAGS else "")
            meaning = " ".join(meaning.split("\n\n")[0].split())
            out.append(Setting(prefix + item.name, default, values_of(hints[item.name]), meaning))
    return out
