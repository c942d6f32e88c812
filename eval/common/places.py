"""Names of models and runs as a command line gives them: patterns, and lists in braces."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from lab.errors import ConfigError
from lab.source.hub import is_hub_id

BRACES = re.compile(r"\{([^{}]*)\}")
PATTERN = re.compile(r"[*?\[]")


def expand(words: Sequence[str]) -> list[Path]:
    """List the places that words name: a pattern's folders and files by name, a word with braces once for each part.

    Raises: ConfigError for a pattern that nothing matches.
    Example:
        >>> [str(place) for place in expand(["hf:a/b@{step1,step2}", "runs/x"])]
        ['hf:a/b@step1', 'hf:a/b@step2', 'runs/x']
    """
    found: list[Path] = []
    for word in [each for given in words for each in in_braces(given)]:
        path = Path(word)
        if is_hub_id(path) or not PATTERN.search(word) or path.exists():
            found.append(path)
            continue
        matches = [Path(match) for match in sorted(glob.glob(word))]
        if not matches:
            raise ConfigError(f"{word}: matches nothing; give folders that exist")
        found += matches
    return found


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
