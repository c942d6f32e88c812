"""YAML as settings need it: plain values, no duplicate keys, and limits on size, depth and repetition.

Scalars follow YAML 1.2: off, on, yes, no, dates and 60:60 are words, 4e-4 and 1_000_000 are numbers. Tags such as
!!python/object are refused, and so is whatever would take long to read, aliases of aliases included.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, NoReturn

import yaml

from lab.errors import ConfigError

LARGEST = 1 << 16  # characters, aliases expanded; a config of every setting has 4,000
MOST_NODES = 5000  # keys and values; PyYAML reads so many in half a second
DEEPEST = 20  # levels; a run's config has 4
TOO_DEEP = f"nested deeper than {DEEPEST} levels; write settings as section.key"
TAG = "tag:yaml.org,2002:"
KEPT = ("null", "merge")  # of PyYAML's own scalars; the others are those of YAML 1.1
NOWHERE = re.compile("[\0\ud800-\udfff]")  # characters that neither a file name nor UTF-8 can hold
BLOCKS = ("|", ">")  # styles of text that is meant to have lines, as the description of a sweep
SCALARS = {  # in the order tried; a number of more than 40 digits is text
    "bool": (re.compile(r"(true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    "int": (re.compile(r"[-+]?(0|[1-9](_*[0-9]){0,39})$"), "-+0123456789"),
    "float": (
        re.compile(
            r"([-+]?((0|[1-9](_*[0-9]){0,39})(\.[0-9_]{0,40})?|\.[0-9][0-9_]{0,39})([eE][-+]?[0-9]{1,4})?"
            r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
        ),
        "-+.0123456789",
    ),
}


class Loader(yaml.SafeLoader):
    """Reads one document within the limits."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0
        self.sizes: dict[yaml.Node, int] = {}  # of complete nodes, in characters, aliases expanded

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        """Read a bracket, unless too many are open: PyYAML reads far ahead of what it composes."""
        if self.flow_level > DEEPEST:
            self.refuse(self.get_mark().line, TOO_DEEP)
        super().fetch_flow_collection_start(TokenClass)

    def refuse(self, line: int, fault: str) -> NoReturn:
        """Raise a fault with its line.

        Raises: ConfigError.
        """
        raise ConfigError(f"{self.name}: line {line + 1}: {fault}")

    def compose_node(self, parent: yaml.Node | None, index: Any) -> Any:
        """Build a node, unless it is tagged, too deep, too large or contains itself."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line
        if getattr(event, "tag", None) is not None:
            self.refuse(line, f"not YAML (the tag {event.tag} is not read); write the plain value")
        self.depth += 1
        if self.depth > DEEPEST:
            self.refuse(line, TOO_DEEP)
        if len(self.sizes) > MOST_NODES:
            self.refuse(line, f"more than {MOST_NODES:,} keys and values; settings are fewer, take the rest out")
        node: Any = super().compose_node(parent, index)
        self.depth -= 1
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias and node not in self.sizes:
            self.refuse(line, "a section contains itself; write out its values")
        if not is_alias:
            self.sizes[node] = self.size(node, getattr(index, "value", None))
        if self.sizes[node] > LARGEST:
            self.refuse(line, f"its aliases stand for more than {LARGEST:,} characters; write fewer")
        return node

    def size(self, node: Any, key: object) -> int:
        """Count the characters of a node, which is the value of `key`.

        Raises: ConfigError for text that no file name can hold.
        """
        if isinstance(node, yaml.MappingNode):
            return 1 + sum(self.sizes[part] for pair in node.value for part in pair)
        if isinstance(node, yaml.SequenceNode):
            return 1 + sum(self.sizes[part] for part in node.value)
        if NOWHERE.search(node.value) or ("\n" in node.value and node.style not in BLOCKS):
            of = f"{key}: " if isinstance(key, str) else ""
            self.refuse(
                node.start_mark.line,
                f"{of}text with a line break, a NUL or half of a surrogate pair; take that character out",
            )
        return 1 + len(node.value)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping and refuse duplicate keys."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                self.refuse(key_node.start_mark.line, "a key must be a word; write section: or key: value")
            if key in seen:
                self.refuse(key_node.start_mark.line, f"{key} is given twice; keep one of them")
            seen.add(key)
        return super().construct_mapping(node, deep)


class Dumper(yaml.SafeDumper):
    """Quotes text that Loader would read as a number."""


Loader.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0].removeprefix(TAG) in KEPT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Dumper.yaml_implicit_resolvers = {k: list(v) for k, v in yaml.SafeDumper.yaml_implicit_resolvers.items()}
for kind, (pattern, first) in SCALARS.items():
    Loader.add_implicit_resolver(TAG + kind, pattern, list(first))
    Dumper.add_implicit_resolver(TAG + kind, pattern, list(first))


def parse_yaml(text: str, name: str) -> Any:
    """Parse YAML; an error names its line.

    Raises: ConfigError.
    Example:
        >>> parse_yaml("{lr: 4e-4, name: 2001-01-01, tokens: 1_000}", "a.yaml")
        {'lr': 0.0004, 'name': '2001-01-01', 'tokens': 1000}
    """
    if len(text) > LARGEST:
        raise ConfigError(f"{name}: has {len(text):,} characters; settings have at most {LARGEST:,}, take the rest out")
    line, reason = "", ""
    try:
        loader = Loader(text)
        loader.name = name
        return loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
    except ConfigError:
        raise
    except (ValueError, OverflowError) as error:  # an escape beyond Unicode, which PyYAML does not check
        reason = str(error)
    raise ConfigError(f"{name}:{line} not YAML ({reason}); correct the line")


def format_yaml(values: dict[str, Any]) -> str:
    """Write settings as YAML that `parse_yaml` reads back to the same."""
    return yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True)
