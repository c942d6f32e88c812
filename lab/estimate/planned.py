"""What a dry run is asked for: its options, and a config whose start.path need not be on this machine; no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lab.command import Words, read_options
from lab.config import Experiment, load_experiment
from lab.errors import ConfigError
from lab.model.config import DecoderConfig
from lab.schema import PositiveFloat, Section, override, part, read_yaml

IGNORED = ("resume", "restart", "print_config", "launcher")
ARCHITECTURE = {f.name: f.default for f in fields(DecoderConfig)}
"""Settings of the model and their defaults; MISSING for those without."""


@dataclass(frozen=True, kw_only=True)
class DryRun(Section):
    """The GPUs that a run is planned for."""

    memory_gib: PositiveFloat | None = None
    """Memory of each GPU in GiB that the run must fit; left out, no limit."""


def separate(words: Words) -> tuple[dict[str, Any], DryRun]:
    """Separate the settings of the run from the options of a dry run.

    Raises: ConfigError for a wrong option, and for a flag that would be ignored.
    """
    given = [name for name in IGNORED if getattr(words.options, name, None)]
    if given:
        raise ConfigError(*(f"--{name}: would be ignored, --dry_run starts nothing; leave it out" for name in given))
    names = {item.name for item in fields(DryRun)}
    settings = {name: value for name, value in words.settings.items() if name not in names}
    return settings, read_options(DryRun, {name: words.settings[name] for name in names & words.settings.keys()})


def load_without_weights(path: Path, overrides: dict[str, Any]) -> Experiment:
    """Read a config as lab.fit does; if its start.path is absent, with the architecture that `model` states.

    Raises: ConfigError naming the missing settings of the architecture.
    """
    values = read_yaml(path)
    override(values, overrides)
    start = part(values, "start").get("path")
    if not isinstance(start, str) or Path(start).is_dir():
        return load_experiment(path, overrides)
    model = architecture_of(part(values, "model"), "model", start)
    filled = {f"model.{name}": value for name, value in model.items()}
    if "tokenizer" not in part(values, "data"):
        filled |= {f"data.tokenizer.{key}": value for key, value in tokenizer_of(start).items()}
    if "frequency" not in part(values, "position"):
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
