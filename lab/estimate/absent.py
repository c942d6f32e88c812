"""Read a config whose start.path is not on this machine; its settings then state the model's architecture."""

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

ARCHITECTURE = {f.name: f.default for f in dataclasses.fields(DecoderConfig)}
"""Settings of the model and their defaults; MISSING for those without."""


def load_without_weights(path: Path, overrides: dict[str, Any]) -> Experiment:
    """Read a config as lab.fit does; if its start.path is absent, with the architecture that `model` states.

    Raises: ConfigError naming the missing settings of the architecture.
    """
    raw = Raw(copy.deepcopy(Raw.read(path).values), str(path))
    raw.override(overrides)
    start = part(raw.values, "start").get("path")
    if not isinstance(start, str) or Path(start).is_dir():
        return load_experiment(path, overrides)
    filled = {
        f"model.{name}": value for name, value in architecture_of(part(raw.values, "model"), "model", start).items()
    }
    data, position = part(raw.values, "data"), part(raw.values, "position")
    if "tokenizer" not in data:
        filled |= {f"data.tokenizer.{key}": value for key, value in tokenizer_of(start).items()}
    if "frequency" not in position:
        filled["position.frequency.method"] = "rope"  # with all of them set, the folder is not read
    return load_experiment(path, overrides | filled)


def architecture_of(given: Mapping[str, Any], prefix: str, start: str) -> dict[str, Any]:
    """Complete the architecture of an absent model by defaults.

    Raises: ConfigError.
    """
    missing = [name for name, default in ARCHITECTURE.items() if default is dataclasses.MISSING and name not in given]
    if missing:
        words = " ".join(f"--{prefix}.{name}=..." for name in missing)
        rule = "is not on this machine, so the model's architecture must be set"
        raise ConfigError(f"start.path={start}: {rule}; add {words}")
    return {name: given.get(name, default) for name, default in ARCHITECTURE.items()}


def tokenizer_of(start: str) -> dict[str, str]:
    """Describe the tokenizer of an absent model, which is never opened."""
    return {"method": "file", "path": str(Path(start) / "tokenizer.json"), "eos": "<eos>"}
