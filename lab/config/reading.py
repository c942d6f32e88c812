"""Read an experiment from YAML; no torch.

Order: defaults, the YAML file, dotted command-line overrides, then settings derived from others. A key that is unknown,
of the wrong type, out of range, contradictory or ignored is an error; all errors are reported at once.

The name auto is the config's and 8 hex digits. The digits are the SHA-256 of the settings that differ from their
defaults, as JSON with sorted keys, without those that do not change what a run computes: lab.train.arms.FREE_TO_CHANGE,
which `--resume` lets differ as well. So equal settings give equal names on any machine, whether written in the config,
on the command line or left at their defaults, and a setting that is added to the lab later, at its default, renames
nothing.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from lab.config.experiment import Experiment
from lab.data.config import Bpe, DataConfig
from lab.data.tokenizer import load_tokenizer
from lab.positions.string import of_length
from lab.schema import TAGS, is_short
from lab.settings import Raw, validated
from lab.source import inherit
from lab.train.arms import FREE_TO_CHANGE, flatten

AUTO = "auto"  # the run.name that is replaced
DIGITS = 8
ONCE_DEFAULT = {"probe.answer_budget": 64, "probe.batch": 64}  # defaults when the first runs were named
ONCE_NAMED = ("probe.batch",)  # free to change only since then


def load_experiment(path: Path, overrides: dict[str, Any] | None = None) -> Experiment:
    """Read a YAML file, or a config of the lab by its name, apply overrides, fill in derived settings, check all.

    An override whose value is a section, as wandb passes nested parameters, overrides the settings in it.

    Raises: ConfigError with one line per fault.
    """
    raw, overrides = Raw.read(path), flatten(overrides or {})
    given = Raw(copy.deepcopy(raw.values), raw.source)
    given.override(overrides)
    inherit(raw.values, given.values)
    fill_in_tags(raw.values)  # before the overrides, which drop the keys of a member they replace
    raw.override(overrides)
    fill_in_tags(raw.values)
    name = path.stem if path.stem != "config" else path.parent.name
    fill_in(raw.values, name)
    experiment = validated(Experiment, raw)
    assert isinstance(experiment, Experiment), "the reader returns the class it was called with"
    if experiment.run.name != AUTO:
        return experiment
    return replace(experiment, run=replace(experiment.run, name=automatic_name(experiment, name)))


def fill_in(values: dict[str, Any], name: str) -> None:
    """Fill in omitted settings that are derived from others."""
    section(values, "run").setdefault("name", name)
    data = section(values, "data")
    tokenizer = section(data, "tokenizer")
    if tokenizer.get("method") == "bpe":
        section(values, "model").setdefault("vocab_size", tokenizer.get("vocab_size", Bpe.vocab_size))
    elif tokenizer.get("method") == "file" and "vocab_size" not in section(values, "model"):
        path = tokenizer.get("path")
        if isinstance(path, str) and is_short(path):  # any other is refused later
            section(values, "model")["vocab_size"] = load_tokenizer(Path(path)).get_vocab_size()
    distance = section(section(values, "position"), "distance")
    if distance.get("method") == "string" and "shift" not in distance:
        window = data.get("window", DataConfig.window)
        values["position"]["distance"] = {**(of_length(window) if isinstance(window, int) else {}), **distance}


def fill_in_tags(values: dict[str, Any]) -> None:
    """Fill in the tags of unions that were left out."""
    data, position = section(values, "data"), section(values, "position")
    section(data, "corpus").setdefault("name", "synthetic")
    tokenizer = section(data, "tokenizer")
    tokenizer.setdefault("method", "file" if "path" in tokenizer else "bpe")
    section(position, "frequency").setdefault("method", "rope")
    section(position, "distance").setdefault("method", "plain")
    section(values, "mask").setdefault("method", "causal")
    if isinstance(values.get("shape"), dict):
        section(values["shape"], "target").setdefault("method", "power")
        section(values["shape"], "strategy").setdefault("method", "weights")


def section(values: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a section, made where it is missing; a value of another type is left for the reader to refuse."""
    found = values.setdefault(key, {}) if isinstance(values, dict) else {}
    if found is None:  # a YAML key with nothing below it
        found = values[key] = {}
    return found if isinstance(found, dict) else {}


def automatic_name(experiment: Experiment, config: str) -> str:
    """Name a run after its config and what it computes."""
    tests = experiment.tests
    derived: dict[str, Any] = {
        "probe.needles": tests.needles,
        "probe.digits": tests.digits,
        "probe.answer_budget": tests.budget,
    }
    if experiment.shape is not None:  # named also where it is the default, which was another once
        derived["shape.strategy.method"] = experiment.shape.strategy.method
    chosen = {
        key: value
        for key, value in {**flatten(chosen_settings(experiment)), **derived}.items()
        if (key in ONCE_NAMED or not key.startswith(FREE_TO_CHANGE)) and ONCE_DEFAULT.get(key) != value
    }
    text = json.dumps(chosen, sort_keys=True)
    return f"{config}-{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"


def chosen_settings(section: Any) -> dict[str, Any]:
    """Return the settings of a section that differ from their defaults, and the tags of unions."""
    chosen = {}
    for item in fields(section):
        value = getattr(section, item.name)
        default = item.default if item.default_factory is MISSING else item.default_factory()
        if item.name in TAGS or value != default:
            chosen[item.name] = chosen_settings(value) if is_dataclass(value) else value
    return chosen
