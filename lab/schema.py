"""The base of all config classes: ranges in the fields' types, and every fault reported at once.

A field carries its rule in its type, `Annotated[int, Ge(1)]`, and its meaning in the docstring below it. The config
reader (pydantic) applies the rules under dotted names; a config class built in code applies the same ones itself.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import math
import textwrap
from collections.abc import Collection, Mapping
from functools import cache
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from lab.errors import ConfigError

T = TypeVar("T")

MOST = 10**15  # of anything counted; a thousand times the tokens of the longest trainings
LONGEST_SHOWN = 80  # characters of a value in an error's line
LONGEST_NAME, LONGEST_PATH = 200, 4000  # bytes; file systems allow 255, of which temporary names take some, and 4095

Positive = Annotated[int, Ge(1), Le(MOST)]
NonNegative = Annotated[int, Ge(0), Le(MOST)]
LONGEST = 2**24  # tokens of a window or a text, for which tables and counts are kept
Length = Annotated[int, Ge(1), Le(LONGEST)]
Tests = Annotated[int, Ge(1), Le(10**6)]  # texts, documents, or whatever is measured one by one
Seed = Annotated[int, Ge(0), Le(2**63 - 1)]
PositiveFloat = Annotated[float, Gt(0), Le(1e15)]
Share = Annotated[float, Ge(0), Le(1)]
PathText = Annotated[str, "a path"]

RULES: dict[type, tuple[str, str]] = {Ge: ("ge", ">="), Gt: ("gt", ">"), Le: ("le", "<="), Lt: ("lt", "<")}
KINDS: dict[Any, str] = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


class Section:
    """Base of the config dataclasses: no unknown keys, no coerced types, ranges and cross-field rules checked."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}

    def __post_init__(self) -> None:
        """Check the ranges, then the rules between fields.

        Raises: ConfigError with one line per fault.
        """
        faults = range_faults(self) or self.rules()
        if faults:
            raise ConfigError(*faults)

    def rules(self) -> list[str]:
        """List the faults between fields; each line begins with the field and its value."""
        return []


def range_faults(config: Any) -> list[str]:
    """List a fault line for every field of a config dataclass that breaks the rule in its type."""
    faults = []
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name, None)
        if hint is bool and not isinstance(value, bool):
            faults.append(f"{name}={brief(value)}: must be true or false")
        if value is None and get_origin(hint) is Annotated:
            faults.append(f"{name}={value}: must be set")
        union = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
        for part in (hint, *union):
            if get_origin(part) is Annotated:
                faults += [f"{name}={brief(value)}: must be {rule}" for rule in broken_rules(value, part)]
    if faults:
        docs = field_docs(type(config))
        faults = [f"{fault}; {' '.join(docs[fault.partition('=')[0]].split()).rstrip('.')}" for fault in faults]
    return faults


def broken_rules(value: Any, hint: Any) -> list[str]:
    """List the constraints of an annotated number that `value` breaks, in words."""
    kind, *constraints = get_args(hint)
    if hint == PathText:
        fits = value is None or is_short(value)
        return [] if fits else [f"a path of at most {LONGEST_PATH:,} bytes, of {LONGEST_NAME} between two slashes"]
    constraints = [constraint for constraint in constraints if type(constraint) in RULES]
    if value is None or not constraints:  # where None is allowed, it means a default
        return []
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
        return ["a whole number" if kind is int else "a number"]
    if not isinstance(value, Integral) and not math.isfinite(value):
        return ["finite"]
    out = []
    for constraint in constraints:
        attribute, sign = RULES[type(constraint)]
        bound = getattr(constraint, attribute)
        holds = {">=": value >= bound, ">": value > bound, "<=": value <= bound, "<": value < bound}[sign]
        if not holds:
            out.append(f"{sign} {bound}")
    return out


def brief(value: object) -> str:
    r"""Write a value for an error's line, without the middle of a long one.

    Example:
        >>> brief([1, 2]), brief("abc"), brief("a\nb"), brief("x" * 5000)
        ('[1, 2]', 'abc', '"a\\nb"', 'xxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxx (5,000 characters)')
    """
    plain = not isinstance(value, dict | list) and str(value).isprintable()
    text = str(value) if plain else json.dumps(value, default=str)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:24]}...{text[-24:]} ({len(text):,} characters)"


def as_written(value: object) -> str:
    """Write a value for an error's line, in quotes if it is text that without them would be no text.

    Example:
        >>> as_written("32"), as_written("true"), as_written("wide"), as_written(32)
        ('"32"', '"true"', 'wide', '32')
    """
    try:
        quoted = isinstance(value, str) and not isinstance(json.loads(value), list | dict)
    except (ValueError, RecursionError):
        quoted = False
    return f'"{brief(value)}"' if quoted else brief(value)


def is_short(path: object) -> bool:
    """Return whether file systems can hold a path."""
    text = str(path).encode("utf-8", "replace")
    return len(text) <= LONGEST_PATH and max(map(len, text.split(b"/"))) <= LONGEST_NAME


def field_docs(config_class: type[Any]) -> dict[str, str]:
    """Read the docstring below each field of a config class, and of those it inherits from, from their source."""
    found: dict[str, str] = docs_of(config_class)
    return found


def parsed_docs(config_class: type[Any]) -> dict[str, str]:
    """Parse the source of a config class for `field_docs`."""
    bases = [base for base in config_class.__bases__ if issubclass(base, Section) and base is not Section]
    docs = {name: text for base in bases for name, text in field_docs(base).items()}
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(config_class))).body
    assert isinstance(node, ast.ClassDef), "config classes are classes"
    for field, after in zip(node.body, node.body[1:]):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            assert isinstance(field.target, ast.Name), "config fields are plain names"
            docs[field.target.id] = inspect.cleandoc(str(after.value.value))
    return docs


docs_of: Any = cache(parsed_docs)  # parsing takes longer than all the rest of reading a config


def sections_of(hint: Any) -> list[type[Any]]:
    """List the config classes that a field's type admits: one for a section, several for a tagged union."""
    if isinstance(hint, type) and issubclass(hint, Section):
        return [hint]
    return [found for part in get_args(hint) for found in sections_of(part)]


def values_of(hint: Any) -> str:
    """Describe the values that a field of a type takes.

    Example:
        >>> values_of(Annotated[int, Ge(2), Le(9)] | None), values_of(tuple[str, ...]), values_of(bool)
        ('whole number >= 2 and <= 9, or null', 'list of: text', 'true or false')
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
        return KINDS.get(hint, "settings by name")
    bounds = [(RULES[type(part)][1], getattr(part, RULES[type(part)][0])) for part in parts[1:] if type(part) in RULES]
    rules = [f"{sign} {int(bound) if bound == int(bound) else bound:,}" for sign, bound in bounds if bound < MOST]
    return " ".join([values_of(parts[0]), " and ".join(rules)]).rstrip()


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number; booleans are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def look_up(methods: Mapping[str, T], method: str, field: str) -> T:
    """Return the method of a name.

    Raises: ConfigError, with the nearest name or the list of names.
    """
    if method not in methods:
        raise ConfigError(f"{field}={method}: unknown method; {nearest(method, methods)}")
    return methods[method]


def nearest(word: str, names: Collection[str]) -> str:
    """Suggest the nearest of some names in place of an unknown word, or list all."""
    near = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {near[0]}?" if near else f"use one of: {', '.join(names)}"
