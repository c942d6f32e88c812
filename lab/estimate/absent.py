"""Read a config whose start.path is not on this machine: the settings state the model's architecture instead."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.config import Experiment, load_experiment
from lab.errors import ConfigError
from lab.model.config import DecoderConfig
from lab.settings import Raw, part

SHAPE = {f.name: f.default for f in dataclasses.fields(DecoderConfig)}
"""Settings of the model and their defaults, MISSING where there is none."""


def load_without_weights(path: Path, overrides: dict[str, Any]) -> Experiment:
    """Read a config as lab.fit does, or, where its start.path is absent, with the shape that `model` states.

    Raises: ConfigError, naming the settings of the shape that are missing.
    """
    raw = Raw(copy.deepcopy(Raw.read(path).values), str(path))
    raw.override(overrides)
    start = part(raw.values, "start").get("path")
    if not isinstance(start, str) or Path(start).is_dir():
        return load_experiment(path, overrides)
    filled = {f"model.{name}": value for name, value in shape_of(part(raw.values, "model"), "model", start).items()}
    data, position = part(raw.values, "data"), part(raw.values, "position")
    if "tokenizer" not in data:
        filled |= {f"data.tokenizer.{key}": value for key, value in tokenizer_of(start).items()}
    if "frequency" not in position:
        filled["position.frequency.method"] = "rope"  # with all of them set, the folder is not read
    return load_experiment(path, overrides | filled)


def shape_of(given: Mapping[str, Any], prefix: str, start: str) -> dict[str, Any]:
    """Complete the shape of an absent model by defaults.

    Raises: ConfigError.
    """
    missing = [name for name, default in SHAPE.items() if default is dataclasses.MISSING and name not in given]
    if missing:
        words = " ".join(f"--{prefix}.{name}=..." for name in missing)
        raise ConfigError(f"start.path={start}: is not on this machine, and the model's shape must be set; add {words}")
    return {name: given.get(name, default) for name, default in SHAPE.items()}


def tokenizer_of(start: str) -> dict[str, str]:
    """Name the tokenizer of an absent model; it is not opened."""
    return {"method": "file", "path": str(Path(start) / "tokenizer.json"), "eos": "<eos>"}
