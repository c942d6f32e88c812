"""Arms: runs that differ in nothing but their seed, their name and how they were computed.

A number of an arm is the mean over its seeds, with 95% limits of the t distribution,

    mean +- t_(n-1, 0.975) s / sqrt(n),     s the standard deviation of the n seeds

One seed has no limits, nor have seeds whose numbers are all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.special import stdtrit  # scipy.stats takes half a second more to import

from lab.errors import CheckpointError

Row = dict[str, Any]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # five times as fast where PyYAML is built with libyaml
CONFIDENCE = 0.95
NOT_OF_THE_ARM = (
    "run.",
    "track.",
    "train.threads",
    "train.devices",
    "train.accelerator",
    "probe.batch",
)
ONLY = "all"  # name of an arm without others


def read_settings(run: Path) -> Row:
    """Read the settings of a run's config.yaml by their dotted names.

    Raises: CheckpointError.
    """
    path = run / "config.yaml"
    try:
        return dict(flat(dict(yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER))))
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise CheckpointError(f"{path}: not a run's config; restore it") from error


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Go through nested settings by their dotted names.

    Example:
        >>> dict(flat({"a": {"b": 1, "c": [2, 3]}, "d": None}))
        {'a.b': 1, 'a.c': '[2, 3]', 'd': None}
    """
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value) if isinstance(value, list) else value


def differing(settings: Mapping[str, Row]) -> list[str]:
    """List the settings that tell arms apart.

    A setting that a run's section does not have tells nothing of that run: the section has another method, whose name
    differs, or was written by a version of the lab without the setting.

    Example:
        >>> one, other = {"skip.method": "pose", "skip.chunks": 2}, {"skip.method": "rpes", "skip.max_gap": 8}
        >>> differing({"a": one, "b": other}), differing({"a": one, "b": {"data.window": 8}})
        (['skip.method'], ['data.window', 'skip.chunks', 'skip.method'])
    """
    keys = sorted({key for each in settings.values() for key in each if not key.startswith(NOT_OF_THE_ARM)})
    runs = [(each, {section_of(key) for key in each}) for each in settings.values()]
    values = {
        key: {str(each.get(key)) for each, sections in runs if key in each or section_of(key) not in sections}
        for key in keys
    }
    return [key for key in keys if len(values[key]) > 1]


def section_of(key: str) -> str:
    """Return the section of a dotted name."""
    return key.rpartition(".")[0]


def name_arms(settings: Mapping[str, Row]) -> dict[str, str]:
    """Name the arm of every run by the settings that differ between arms; all in one arm have the name of all runs.

    Example:
        >>> name_arms({"a": {"data.window": 96, "run.seed": 0}, "b": {"data.window": 192, "run.seed": 0}})
        {'a': 'window=96', 'b': 'window=192'}
    """
    apart = keys = differing(settings)
    arms = n_arms(settings, apart)
    for key in apart:  # leave out what follows from the others, as a parameter of one method alone
        values = {str(each.get(key)) for each in settings.values()}
        others = [other for other in keys if other != key]
        if "None" in values and len(values) == 2 and n_arms(settings, others) == arms:
            keys = others
    return {
        name: ", ".join(f"{key.split('.')[-1]}={plain(each[key])}" for key in keys if each.get(key) is not None) or ONLY
        for name, each in settings.items()
    }


def plain(value: Any) -> str:
    """Write a value without the decimals of a whole number.

    Example:
        >>> plain(96.0), plain(0.8), plain("natural")
        ('96', '0.8', 'natural')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)


def n_arms(settings: Mapping[str, Row], keys: Sequence[str]) -> int:
    """Count the arms that settings tell apart."""
    return len({tuple(str(each.get(key)) for key in keys) for each in settings.values()})


def mean_with_limits(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean over seeds and its limits, which are nan where there are none.

    Example:
        >>> [round(x, 3) for x in mean_with_limits([1.0, 2.0, 3.0])], mean_with_limits([2.0])
        ([2.0, -0.484, 4.484], (2.0, nan, nan))
    """
    n, mean = len(values), float(np.mean(values))
    if n < 2 or len(set(values)) == 1:
        return mean, np.nan, np.nan
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2) * np.std(values, ddof=1) / np.sqrt(n))
    return mean, mean - half, mean + half
