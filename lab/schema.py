"""The base of all config classes: pydantic checks their fields, and every fault is one line.

A field carries its rule in its type, `Annotated[int, Ge(1)]`, and its meaning in the docstring below it. A config class
is checked in the same way where it is read from YAML and where it is built in code. A fault's line is
`dotted.field=value: rule; remedy`, the remedy being the nearest valid name or the meaning of the field.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import Field, fields
from functools import cache, partial
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs, PydanticCustomError

from lab.errors import ConfigError, as_written, brief, first_line, nearest

T = TypeVar("T")

MOST = 10**15  # of anything counted; a thousand times the tokens of the longest trainings
MOST_FAULTS = 20  # looked into; each costs a search for the nearest name
LONGEST_NAME, LONGEST_PATH = 200, 4000  # bytes; file systems allow 255, of which temporary names take some, and 4095
TAGS = ("name", "method")  # keys that select a member of a tagged union
UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")  # pydantic's errors of a key that is no setting
SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}  # of pydantic's errors and of the types' annotations
KINDS = {  # beginnings of pydantic's error types
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "finite": "finite",
    "dataclass": "a section",
    "dict": "a section",
}


def is_short(path: object) -> bool:
    """Return whether file systems can hold a path, and a line can show it."""
    text = str(path).encode("utf-8", "replace")
    fits = len(text) <= LONGEST_PATH and max(map(len, text.split(b"/"))) <= LONGEST_NAME
    return fits and str(path).isprintable()


def path_text(text: str) -> str:
    """Refuse a path that no file system can hold."""
    if not is_short(text):
        rule = f"must be a path of at most {LONGEST_PATH:,} bytes, of {LONGEST_NAME} between two slashes, in one line"
        raise PydanticCustomError("path", rule)
    return text


Positive = Annotated[int, Ge(1), Le(MOST)]
NonNegative = Annotated[int, Ge(0), Le(MOST)]
LONGEST = 2**24  # tokens of a window or a text, for which tables and counts are kept
Length = Annotated[int, Ge(1), Le(LONGEST)]
Tests = Annotated[int, Ge(1), Le(10**6)]  # texts, documents, or whatever is measured one by one
Seed = Annotated[int, Ge(0), Le(2**63 - 1)]
PositiveFloat = Annotated[float, Gt(0), Le(1e15)]
Share = Annotated[float, Ge(0), Le(1)]
PathText = Annotated[str, AfterValidator(path_text)]

IS_CHECKING: ContextVar[bool] = ContextVar("IS_CHECKING", default=False)  # whether pydantic builds the objects
adapter: Any = cache(TypeAdapter)  # of a config class; building one takes longer than reading


class Section:
    """Base of the config dataclasses: no unknown keys, no coerced types, ranges and cross-field rules checked."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def __post_init__(self) -> None:
        """Have pydantic check and set the fields of an object built in code, then check the rules between fields.

        Raises: ConfigError with one line per fault.
        """
        if IS_CHECKING.get():
            faults = self.rules()
            if faults:
                raise ConfigError(*faults)
            return
        values = {item.name: plain(getattr(self, item.name)) for item in fields(self)}  # type: ignore[arg-type]
        build = partial(adapter(type(self)).validator.validate_python, self_instance=self)
        check(type(self), values, build, ArgsKwargs((), values), brief)

    def rules(self) -> list[str]:
        """List the faults between fields; each line begins with the field and its value."""
        return []


def plain(value: Any) -> Any:
    """Return NumPy's numbers as Python's, and lists as tuples, which pydantic takes for no others."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, Real) and not isinstance(value, bool | float):
        return int(value) if isinstance(value, Integral) else float(value)
    return value


def validated_values(root: type[T], values: Mapping[str, Any], source: str = "settings") -> T:
    """Build a config class from settings by name; `source` is where they stand.

    Raises: ConfigError with one line for every fault found, unknown settings first, as others may be missing for them.
    """
    try:
        text = json.dumps(values, default=str, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        rule = "must be text and numbers by name, not nested within themselves"
        raise ConfigError(f"{source}: {rule} ({first_line(error)}); write section.key: value") from error
    found: T = check(root, values, adapter(root).validate_json, text, as_written)
    return found


def check(root: type[Any], values: Mapping[str, Any], build: Any, given: Any, write: Callable[[object], str]) -> Any:
    """Have pydantic build a config class; `write` writes values for the faults' lines.

    Raises: ConfigError.
    """
    token = IS_CHECKING.set(True)
    try:
        return build(given)
    except ValidationError as error:
        found = sorted(error.errors(include_url=False), key=lambda item: item["type"] not in UNKNOWN)[:MOST_FAULTS]
        lines = [line for item in found for line in fault_lines(root, values, item, write)]
        raise ConfigError(*dict.fromkeys(lines)) from None
    finally:
        IS_CHECKING.reset(token)


def fault_lines(root: type[Any], values: Mapping[str, Any], item: Any, write: Callable[[object], str]) -> Iterator[str]:
    """Convert one of pydantic's errors to lines for the user."""
    keys, value = located(item["loc"], values)
    dotted = ".".join(str(key) for key in keys)
    kind, context = item["type"], item.get("ctx", {})
    if kind == "value_error":  # a rule of a section, whose lines begin with the field
        for line in getattr(context["error"], "faults", [str(context["error"])]):
            yield f"{dotted}.{line}" if dotted else line
    elif kind in UNKNOWN:
        yield f"{dotted}={write(value)}: unknown setting; {suggestion(root, values, keys)}"
    elif kind in ("missing", "missing_argument"):
        yield f"{dotted}: must be set; {meaning_of(root, values, keys)}"
    elif kind.startswith("union_tag"):
        tag, expected = context.get("tag", ""), context.get("expected_tags", "").replace("'", "").split(", ")
        yield f"{dotted}.{context['discriminator'].strip(chr(39))}={brief(tag)}: unknown; {nearest(str(tag), expected)}"
    else:
        yield f"{dotted}={write(value)}: {rule_of(item)}; {meaning_of(root, values, keys)}"


def rule_of(item: Any) -> str:
    """Describe the rule that a value breaks."""
    context = item.get("ctx", {})
    for key, sign in SIGNS.items():
        if key in context:
            bound = context[key]
            return f"must be {sign} {int(bound) if bound == int(bound) else bound}"
    if item["type"] == "literal_error":
        return f"must be one of {context['expected']}"
    words = next((words for start, words in KINDS.items() if item["type"].startswith(start)), None)
    return f"must be {words}" if words else str(item["msg"])


def located(location: Sequence[Any], values: Any) -> tuple[list[Any], Any]:
    """Return the keys of an error's location, without the tags and types that pydantic adds, and the value there."""
    keys: list[Any] = []
    for key in location:
        is_list = isinstance(values, list | tuple)
        if isinstance(key, str) and (
            not isinstance(values, dict) or (key not in values and key in map(values.get, TAGS))
        ):
            continue
        keys.append(key)
        known = values.get(key) if isinstance(values, dict) else None
        values = values[key] if is_list and isinstance(key, int) and key < len(values) else known
    return keys, values


def sections_of(hint: Any) -> list[type[Any]]:
    """List the config classes that a field's type admits: one for a section, several for a tagged union."""
    if isinstance(hint, type) and issubclass(hint, Section):
        return [hint]
    return [found for part in get_args(hint) for found in sections_of(part)]


def section_at(root: type[Any], values: Any, keys: Sequence[Any]) -> type[Any] | None:
    """Return the config class that has the last key as a field."""
    current: type[Any] = root
    for key in keys[:-1]:
        hints = get_type_hints(current, include_extras=True)
        values = values.get(key) if isinstance(values, Mapping) else None
        if key not in hints:  # of a table of sections, or of a list
            continue
        options = sections_of(hints[key])
        tags = [values.get(name) for name in TAGS] if isinstance(values, Mapping) else []
        chosen = options if len(options) == 1 else [one for one in options if default_tag(one) in tags]
        if not chosen:
            return None
        current = chosen[0]
    return current


def settings_in(root: type[Any], prefix: str = "") -> Iterator[tuple[str, Field[Any], type[Any], Any]]:
    """Yield every setting under its dotted name, with its field, class and type; the members of unions in turn."""
    hints = get_type_hints(root, include_extras=True)
    for item in sorted(fields(root), key=lambda item: item.name not in TAGS):
        sections = sections_of(hints[item.name])
        for section in sections:
            yield from settings_in(section, f"{prefix}{item.name}.")
        if not sections:
            yield prefix + item.name, item, root, hints[item.name]


def default_tag(section: type[Any]) -> Any:
    """Read the tag of a member of a tagged union."""
    defaults = {item.name: item.default for item in fields(section)}
    return defaults.get("method", defaults.get("name"))


def suggestion(root: type[Any], values: Any, keys: Sequence[Any]) -> str:
    """Suggest a valid setting in place of an unknown one: the nearest, or the list."""
    section = section_at(root, values, keys)
    if section is None:
        return "see --help=all"
    above = ".".join(str(key) for key in keys[:-1])
    names = [item.name for item in fields(section)]
    near = [f"{above}.{name}".lstrip(".") for name in difflib.get_close_matches(str(keys[-1]), names, n=1)]
    everywhere = {item.name: dotted for dotted, item, *_ in reversed([*settings_in(root)])}
    far = [everywhere[name] for name in difflib.get_close_matches(str(keys[-1]), everywhere, n=1)]
    own = ".".join(str(key) for key in keys)  # a setting of another member of a union: list this member's
    found = near or [name for name in far if name != own]
    return f"did you mean {found[0]}?" if found else f"{above or 'a config'} has {', '.join(names)}"


def meaning_of(root: type[Any], values: Any, keys: Sequence[Any]) -> str:
    """Return the meaning of a setting, as the remedy."""
    names = [key for key in keys if isinstance(key, str)]
    section = section_at(root, values, names) if names else None
    text = field_docs(section).get(names[-1], "") if section else ""
    return " ".join(text.split()).rstrip(".") or "see --help=all"


def parsed_docs(section: type[Any]) -> dict[str, str]:
    """Read the docstring below each field of a config class, and of those it inherits from, from their source.

    pydantic reads them as well (use_attribute_docstrings), but at every start, which takes 0.4 s for a run's config.
    """
    docs = {}
    for base in (base for base in reversed(section.__mro__) if issubclass(base, Section) and base is not Section):
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef), "config classes are classes"
        for field, after in zip(node.body, node.body[1:]):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                docs[ast.unparse(field.target)] = inspect.cleandoc(str(getattr(after.value, "value", "")))
    return docs


field_docs: Any = cache(parsed_docs)


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
