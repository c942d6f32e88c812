"""Settings of runs that earlier versions trained, in today's terms; no torch.

A run folder's config.yaml is complete, so that a setting it lacks is one that its version did not have. Earlier
versions gave the lengths of synthetic documents as fractions of data.window, drew the tests from run.seed, and had no
norms of queries and keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.settings import part

LENGTHS = {"median_frac": "median_tokens", "section_frac": "section_tokens"}


def is_of_run(path: Path) -> bool:
    """Return whether a config is that of a run folder, and not written by hand."""
    return path.name == "config.yaml" and (path.parent / "environment.json").is_file()


def bring_up_to_date(values: dict[str, Any]) -> None:
    """Replace settings of earlier versions by today's settings for the same documents and tests.

    Example:
        >>> data = {"window": 100, "corpus": {"median_frac": 0.25}}
        >>> values = {"run": {"seed": 3}, "probe": {"tests": 9}, "data": data}
        >>> bring_up_to_date(values)
        >>> values["probe"], values["data"]["corpus"]
        ({'tests': 9, 'seed': 3}, {'median_tokens': 25.0})
    """
    data = part(values, "data")
    corpus = part(data, "corpus")
    for old, new in LENGTHS.items():
        if old in corpus:
            corpus[new] = corpus.pop(old) * data["window"]
    part(values, "model").setdefault("qk_norm", False)
    part(values, "probe").setdefault("seed", part(values, "run").get("seed", 0))
