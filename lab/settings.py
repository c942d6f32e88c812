"""Read settings as nested sections: a YAML file, dotted overrides, methods on a command line; list them for help.

YAML is that of version 1.2: off, yes and 60:60 are words, 4e-4 and 1_000 are numbers. Dates are words, too. A key that
is given twice is refused.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError, SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.representer import SafeRepresenter

from lab.errors import ConfigError, brief, first_line
from lab.schema import MOST, SIGNS, TAGS, PathText, T, field_docs, settings_in, validated_values

WORDS_OF_1_1 = ("y", "n", "yes", "no", "on", "off")  # words that other readers, of YAML 1.1, take for true and false
TYPES: dict[Any, str] = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


class Constructor(SafeConstructor):
    """Builds plain values, and text for dates."""


class Representer(SafeRepresenter):
    """Writes what readers of YAML 1.1 read to the same values."""

    def represent_text(self, text: str) -> Any:
        """Write text, quoted where YAML 1.1 has another meaning for it."""
        style = "'" if text.lower() in WORDS_OF_1_1 else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    def represent_number(self, number: float) -> Any:
        """Write a number with a fraction as YAML 1.1 needs it: 1.0e-05."""
        node = self.represent_float(number)
        digits, e, exponent = node.value.partition("e")
        node.value = f"{digits}{'' if '.' in digits or not e else '.0'}{e}{exponent}"
        return node


for tag in ("timestamp", "value"):
    Constructor.add_constructor(f"tag:yaml.org,2002:{tag}", SafeConstructor.construct_yaml_str)
Representer.add_representer(str, Representer.represent_text)
Representer.add_representer(float, Representer.represent_number)


def parse_yaml(text: str, name: str) -> Any:
    """Parse YAML; an error names its line.

    Raises: ConfigError.
    Example:
        >>> parse_yaml("{lr: 4e-4, name: 2001-01-01, tokens: 1_000}", "a.yaml")
        {'lr': 0.0004, 'name': '2001-01-01', 'tokens': 1000}
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = Constructor
    try:
        return yaml.load(text)
    except (YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f" line {mark.line + 1}:" if mark else ""
        fault = f"not YAML ({problem or first_line(error)}); correct the line"
        if isinstance(error, DuplicateKeyError):
            fault = f"{str(problem).split(chr(34))[1]} is given twice; keep one of them"
        raise ConfigError(f"{name}:{line} {fault}") from error


def format_yaml(values: dict[str, Any]) -> str:
    """Write settings as YAML that `parse_yaml` reads back to the same."""
    yaml, out = YAML(typ="safe", pure=True), io.StringIO()
    yaml.Representer = Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(values, out)
    return out.getvalue()


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
            text = path.read_text(encoding="utf-8")
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
        for dotted in sorted(overrides, key=lambda key: key.split(".")[-1] not in TAGS):
            *parents, last = dotted.split(".")
            node = self.values
            for parent in parents:
                if not isinstance(node.get(parent), dict):
                    node[parent] = {}
                node = node[parent]
            if len(parents) > 1 and last in TAGS and node.get(last) != overrides[dotted]:
                node.clear()
            node[last] = overrides[dotted]


def validated(root: type[T], raw: Raw) -> T:
    """Build the config class from raw settings.

    Raises: ConfigError with one line for every fault found.
    """
    return validated_values(root, raw.values, raw.source)


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
            raise ConfigError(f"{brief(word)}: not a setting; write --section.key=value")
        key, equals, text = word[2:].partition("=")
        if not equals and (not left or left[0].startswith("--")):
            if key not in bare:
                raise ConfigError(f"--{brief(key)}: has no value; write --{brief(key)}=value")
            text = "true"
        elif not equals:
            text = left.pop(0)
        if key in overrides:
            raise ConfigError(f"--{key}: is given twice; keep one of them")
        overrides[key] = parse_yaml(text, f"--{brief(key)}")
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
    keys = ["method", *(key for key, *_ in parts)]
    twice = [key for place, key in enumerate(keys) if key in keys[:place]]
    if twice:
        raise ConfigError(f"{option}={brief(word)}: sets {twice[0]} twice; keep one of them")
    return {"method": name, **{key: parse_yaml(value, f"{option}={brief(word)}") for key, _, value in parts}}


class Setting(NamedTuple):
    """A setting as help and docs/settings.md list it."""

    name: str
    default: str
    values: str
    meaning: str


def all_settings(root: type[Any], prefix: str = "") -> list[Setting]:
    """List every setting under its dotted name, the members of tagged unions in turn."""
    listed = []
    for dotted, item, section, hint in settings_in(root, prefix):
        default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        shown = "required" if default is dataclasses.MISSING else json.dumps(default, default=str)
        meaning = field_docs(section).get(item.name) or (str(section.__doc__) if item.name in TAGS else "")
        listed.append(Setting(dotted, shown, values_of(hint), " ".join(meaning.split("\n\n")[0].split())))
    return listed


def values_of(hint: Any) -> str:
    """Describe the values that a field of a type takes.

    Example:
        >>> values_of(int | None), values_of(tuple[str, ...]), values_of(bool)
        ('whole number, or null', 'list of: text', 'true or false')
    """
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return ", or ".join(values_of(part) for part in parts)
    if kind is Literal:
        return " or ".join(str(part).lower() if isinstance(part, bool) else str(part) for part in parts)
    if kind is tuple:
        return f"list of: {values_of(parts[0])}"
    if hint == PathText:
        return "path"
    if kind is not Annotated:
        return TYPES.get(hint, "settings by name")
    bounds = [(sign, getattr(part, name)) for part in parts[1:] for name, sign in SIGNS.items() if hasattr(part, name)]
    rules = [f"{sign} {int(bound) if bound == int(bound) else bound:,}" for sign, bound in bounds if bound < MOST]
    return " ".join([values_of(parts[0]), " and ".join(rules)]).rstrip()
