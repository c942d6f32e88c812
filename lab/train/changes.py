"""Differences between two runs' settings, and the settings that may change when a run is resumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

FREE_TO_CHANGE = (  # settings, or sections, that do not change what a run computes
    "train.devices",
    "train.nodes",
    "train.context_parallel",
    "train.accelerator",
    "train.strategy",
    "train.threads",
    "train.recompute",
    "train.backend",
    "train.compile",
    "train.keep_checkpoints",
    "train.final_checkpoints",
    "train.async_checkpoints",
    "probe.batch",
    "data.prefetch",
    "data.folder",
    "track.",
    "run.folder",
    "run.name",
)


class Change(NamedTuple):
    """A dotted setting with its values."""

    key: str
    before: Any
    now: Any


def changes(before: dict[str, Any], now: dict[str, Any]) -> Iterator[Change]:
    """List the settings that differ, except those that may.

    Example:
        >>> list(changes({"optim": {"lr": 1.0}, "run": {"name": "a"}}, {"optim": {"lr": 2.0}, "run": {"name": "b"}}))
        [Change(key='optim.lr', before=1.0, now=2.0)]
    """
    old, new = flatten(before), flatten(now)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key) and not key.startswith(FREE_TO_CHANGE):
            yield Change(key, old.get(key), new.get(key))


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested sections into dotted keys.

    Example:
        >>> flatten({"optim": {"lr": 1.0}, "skip": None})
        {'optim.lr': 1.0, 'skip': None}
    """
    out: dict[str, Any] = {}
    for key, value in values.items():
        out |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value}
    return out
