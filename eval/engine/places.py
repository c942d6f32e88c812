"""Names of models and runs as a command line gives them: patterns, and lists in braces."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from lab.errors import ConfigError
from lab.source import is_hub_id, revisions

BRACES = re.compile(r"\{([^{}]*)\}")
PATTERN = re.compile(r"[*?\[]")


def expand(words: Sequence[str]) -> list[Path]:
    """List the places that words name: a word with braces once for each part, a pattern's folders, files or revisions.

    Matches are ordered by name, numbers in it by size.

    Raises: ConfigError for a pattern that nothing matches.
    Example:
        >>> [str(place) for place in expand(["hf:a/b@{step1,step2}", "runs/x"])]
        ['hf:a/b@step1', 'hf:a/b@step2', 'runs/x']
    """
    found: list[Path] = []
    for word in [each for given in words for each in in_braces(given)]:
        path = Path(word)
        if not PATTERN.search(word) or path.exists():
            found.append(path)
            continue
        on_hub = is_hub_id(path)
        matches = revisions(word) if on_hub else glob.glob(word)
        if not matches:
            raise ConfigError(f"{word}: matches nothing; give {'revisions' if on_hub else 'folders'} that exist")
        found += map(Path, sorted(matches, key=by_number))
    return found


def by_number(word: str) -> list[str | int]:
    """Split a word so that numbers in it sort by size.

    Example:
        >>> sorted(["step_1000", "step_20"], key=by_number)
        ['step_20', 'step_1000']
    """
    return [int(part) if place % 2 else part for place, part in enumerate(re.split(r"([0-9]+)", word))]


def names_of(places: Sequence[Path]) -> list[str]:
    """Name places by their last part, or by all parts where two places share the last.

    Example:
        >>> names_of([Path("runs/a"), Path("hf:x/b@step1")]), names_of([Path("x/1/hf"), Path("x/2/hf")])
        (['a', 'b@step1'], ['x-1-hf', 'x-2-hf'])
    """
    names = [place.name for place in places]
    return names if len({*names}) == len(names) else [str(place).strip("/").replace("/", "-") for place in places]


def in_braces(word: str) -> list[str]:
    """Write a word once for each part of its braces, as a shell does.

    Example:
        >>> in_braces("x{1,2}{a,b}"), in_braces("x")
        (['x1a', 'x1b', 'x2a', 'x2b'], ['x'])
    """
    found = BRACES.search(word)
    if found is None:
        return [word]
    before, after = word[: found.start()], word[found.end() :]
    return [each for part in found[1].split(",") for each in in_braces(f"{before}{part}{after}")]
