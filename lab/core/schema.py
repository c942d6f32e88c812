"""The base of all config classes, and the errors that pydantic finds in what they are read from.

A field carries its rule in its type, `Annotated[int, Ge(1)]`, and its meaning in the docstring below it. pydantic
checks it, read from YAML or built in code. Every error is one line, `dotted.field=value: rule; fix`. The fix is
the nearest valid name or the meaning of the field.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cache
from itertools import chain, pairwise
from operator import attrgetter
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from lab.core.errors import LONGEST_NAME, LONGEST_PATH, ConfigError, abbreviate, first_line, is_short, suggest
from lab.core.yaml import Settings, flatten

T = TypeVar("T")

MOST = 10**15  # of anything counted; a thousand times the tokens of the longest trainings
TAGS = ("name", "method", "by")  # keys that select a member of a tagged union
UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")  # pydantic's errors of a key that is no setting


def path_text(text: str) -> str:
    """Reject a path that no file system can hold."""
    if not is_short(text):
        rule = f"must be a path of at most {LONGEST_PATH:,} bytes, of {LONGEST_NAME} between two slashes, in one line"
        raise PydanticCustomError("path", rule)
    return text


LONGEST = 2**24  # tokens of a window or a text, for which tables and counts are retained
Positive = Annotated[int, Ge(1), Le(MOST)]
NonNegative = Annotated[int, Ge(0), Le(MOST)]
Length = Annotated[int, Ge(1), Le(LONGEST)]
Tests = Annotated[int, Ge(1), Le(10**6)]  # texts, documents, or whatever is measured one by one
Seed = Annotated[int, Ge(0), Le(2**63 - 1)]
PositiveFloat = Annotated[float, Gt(0), Le(1e15)]
Share = Annotated[float, Ge(0), Le(1)]
PathText = Annotated[str, AfterValidator(path_text)]

IS_CHECKING: ContextVar[bool] = ContextVar("IS_CHECKING", default=False)  # whether pydantic builds the objects
adapter: Any = cache(TypeAdapter)  # of a config class; building one takes longer than reading


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Section:
    """Base of the config classes: no unknown keys, no coerced types, ranges and cross-field rules checked.

    Its subclasses are frozen dataclasses without a decorator; their fields are passed by name.
    """

    plugin: ClassVar[str] = ""
    """SHA-256 of the source of the plugin that defines the class; empty for the lab's own."""
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def __init_subclass__(cls, *, kw_only: bool = True) -> None:
        dataclass(frozen=True, kw_only=kw_only)(cls)
        # Plugins may have the decorator, which would reject these two; below they are those of all sections.
        del cls.__setattr__, cls.__delattr__

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __post_init__(self) -> None:
        """Have pydantic check an object built in code; it calls this again, and then the rules are checked."""
        if not IS_CHECKING.get():
            validated(type(self), non_defaults(self), self)
        elif errors := tuple(self.rules()):
            raise ConfigError(*errors)

    def rules(self) -> Iterable[str]:
        """Find the errors between fields; each line begins with the field and its value."""
        return ()

    def joint_rules(self, run: Any) -> Iterable[str]:
        """Find the errors between this section of a run's config and the others; fields are dotted from its root."""
        return ()

    def format_error(self, field: str, rule: str) -> str:
        """Write the error of a field, which may be dotted."""
        return f"{field}={abbreviate(attrgetter(field)(self))}: {rule}"


class Method(Section, ABC):
    """Base of the sections that `method: NAME` selects."""

    @property
    @abstractmethod
    def method(self) -> str:
        """Name of the method in the config."""


@dataclass(frozen=True, eq=False)
class OneOf:
    """The annotation of a section whose class `tag` selects from a table, to which plugins add classes of `base`."""

    base: type[Section]
    table: dict[str, type[Section]]
    tag: str = "method"
    every: ClassVar[list[OneOf]] = []

    def __post_init__(self) -> None:
        self.every.append(self)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Have pydantic read the classes that the table holds now."""
        choices = {tag: handler.generate_schema(member) for tag, member in self.table.items()}
        if not choices:
            choices[""] = core_schema.none_schema()
        return core_schema.tagged_union_schema(choices, discriminator=self.tag)


def validated(root: type[T], values: Mapping[str, object], instance: T | None = None) -> T:
    """Build a config class from settings by name, or set the fields of an instance.

    Raises: ConfigError with one line for every error, but for what may be missing only as a name is misspelt.
    """
    # By JSON, because pydantic takes a list for a tuple only in JSON if types are strict.
    try:
        text = json.dumps(values, default=section_to_json, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        rule = f"must be text and numbers by name, not nested within themselves ({first_line(error)})"
        raise ConfigError(f"settings: {rule}; write section.key: value") from error
    # pydantic calls __post_init__ of the objects that it builds, which must not validate them again.
    token = IS_CHECKING.set(True)
    try:
        return adapter(root).validator.validate_json(text, self_instance=instance)
    except ValidationError as error:
        items = error.errors(include_url=False)
        # A misspelt name is also reported as a missing setting, which the correction of the name sets.
        if any(item["type"] in (*UNKNOWN, "union_tag_invalid") for item in items):
            items = [item for item in items if not item["type"].startswith("missing")]
        raise ConfigError(*dict.fromkeys(chain.from_iterable(error_lines(root, item) for item in items))) from None
    finally:
        IS_CHECKING.reset(token)


def default_value(field: Field[Any]) -> Any:
    """Return the default of a field, or MISSING."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def non_defaults(section: Any) -> Settings:
    """Return the fields of a section that differ from their defaults, and the tags of unions."""
    changed = {}
    for item in fields(section):
        value = getattr(section, item.name)
        if value != default_value(item) or item.name in TAGS:
            changed[item.name] = value
    return changed


def section_to_json(value: object) -> object:
    """Return a section as a dict, NumPy's numbers as Python's, and anything else as text."""
    if isinstance(value, Section):
        return non_defaults(value)
    if hasattr(value, "item"):
        return value.item()
    return str(value)


def error_lines(root: Any, item: Any) -> list[str]:
    """Convert one of pydantic's errors to lines for the user."""
    section, keys, hint = locate_error(root, item["loc"])
    dotted, error, context = ".".join(map(str, keys)), item["type"], item.get("ctx", {})
    if error == "value_error":
        # A rule of a section, whose lines begin with the field.
        lines = getattr(context["error"], "errors", [str(context["error"])])
        return [f"{dotted}.{line}".lstrip(".") for line in lines]
    if error in UNKNOWN:
        settings = flatten({dotted: item["input"]})
        if len(settings) == 1:
            [(name, value)] = settings.items()
            dotted = f"{name}={abbreviate(value)}"
        return [f"{dotted}: unknown setting; {suggest_setting(root, section, keys)}"]
    if error.startswith("union_tag"):
        tag, key = str(context.get("tag")), context["discriminator"].strip("'")
        members = list_members(hint)
        fix = suggest(tag, members) if members else "name the file that defines it in plugins"
        return [f"{dotted}.{key}={abbreviate(tag)}: unknown; {fix}"]
    name = next((key for key in reversed(keys) if isinstance(key, str)), "")
    meaning = " ".join(read_docs(section).get(name, "").split()).rstrip(".")
    if error.startswith("missing"):
        return [f"{dotted}: must be set; {meaning}"]
    rule = str(item["msg"])
    translations = {  # of pydantic's messages
        "Input should be '": "must be one of '",
        "Input should be ": "must be ",
        "a finite number": "finite",
        "greater than or equal to": ">=",
        "less than or equal to": "<=",
        "greater than": ">",
        "less than": "<",
        "a valid integer": "a whole number",
        "a valid number": "a number",
        "a valid boolean": "true or false",
        "a valid string": "text",
        "a valid array": "a list",
        "an object": "a section",
    }
    for theirs, ours in translations.items():
        rule = rule.replace(theirs, ours)
    value = abbreviate(item["input"])
    if isinstance(item["input"], str) and error.endswith("_type"):
        # Quotes show that "5" is text, and not a whole number.
        value = f'"{value}"'
    return [f"{dotted}={value}: {rule}; {meaning or 'see --help=all'}"]


def locate_error(root: Any, location: Sequence[Any]) -> tuple[Any, list[Any], Any]:
    """Return the section of an error, its keys without the tags and types that pydantic adds, and the type there.

    For an error of YaRN's factor pydantic's location is position, frequency, yarn, factor. The keys are position,
    frequency, factor, the section is YaRN's class, and the type is that of its field `factor`.
    """
    # Within a union the location contains the tag of a member, which is no key: it selects the class of the keys that
    # follow. Numbers are indices of lists. What else pydantic adds, such as "int" within a union of types, is no key.
    section, hint, keys = root, root, []
    for key in location:
        members = list_members(hint)
        if key in members and hint is not members[key]:
            hint = members[key]
        elif members or isinstance(key, int):
            keys.append(key)
            section = next(iter(members.values()), section)
            hint = get_type_hints(section, include_extras=True).get(key, hint)
    return section, keys, hint


def list_members(hint: Any) -> dict[Any, Any]:
    """Return the config classes that a field's type admits, by tag: one for a section, several for a tagged union."""
    if isinstance(hint, type) and issubclass(hint, Section):
        return {next((getattr(hint, tag) for tag in TAGS if hasattr(hint, tag)), None): hint}
    members: dict[Any, Any] = {}
    for part in get_args(hint):
        if isinstance(part, OneOf):
            return dict(part.table)
        members |= list_members(part)
    return members


def iterate_settings(root: Any, prefix: str = "") -> Iterator[tuple[str, Field[Any], Any, Any]]:
    """Yield every setting under its dotted name, with its field, class and type; the members of unions in turn."""
    hints = get_type_hints(root, include_extras=True)
    for item in sorted(fields(root), key=lambda item: item.name not in TAGS):
        members = list_members(hints[item.name])
        if get_origin(hints[item.name]) is tuple:  # a list: its items are no settings of their own
            members = {}
        for section in members.values():
            yield from iterate_settings(section, f"{prefix}{item.name}.")
        if not members:
            yield prefix + item.name, item, root, hints[item.name]


def suggest_setting(root: type[Any], section: type[Any], keys: Sequence[object]) -> str:
    """Suggest a valid setting in place of an unknown one: the nearest, or the list."""
    dotted = ".".join(map(str, keys))
    above = dotted.rpartition(".")[0]
    siblings = {item.name: f"{above}.{item.name}".lstrip(".") for item in fields(section)}
    # The same name may be a setting of another member of the union.
    names = {item.name: name for name, item, *_ in reversed([*iterate_settings(root)]) if name != dotted} | siblings
    for name in difflib.get_close_matches(str(keys[-1]), names, n=1):
        return f"did you mean {names[name]}?"
    return f"{above or 'a config'} has {', '.join(siblings)}"


@cache
def read_docs(section: type[Section]) -> dict[str, str]:
    """Read the docstring below each field of a config class."""
    # pydantic can read them too (use_attribute_docstrings), which takes 0.4 s at every start.
    docs = {}
    for base in reversed(section.__mro__):
        if not issubclass(base, Section):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for before, after in pairwise(body):
            if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
                docs[ast.unparse(before.target)] = inspect.cleandoc(str(getattr(after.value, "value", "")))
    return docs
