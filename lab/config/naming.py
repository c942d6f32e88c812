"""Name a run by its settings: the config's name and 8 hex digits.

The digits are the SHA-256 of the settings that differ from their defaults, as JSON with sorted keys, without those that
do not change what a run computes: lab.train.arms.FREE_TO_CHANGE, which `--resume` lets differ as well. So equal
settings give equal names on any machine, whether written in the config, on the command line or left at their
defaults, and a setting that is added to the lab later, at its default, renames nothing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from lab.schema import TAGS
from lab.train.arms import FREE_TO_CHANGE, flatten

if TYPE_CHECKING:
    from lab.config.experiment import Experiment

AUTO = "auto"  # the run.name that is replaced
DIGITS = 8
ONCE_DEFAULT = {"probe.answer_budget": 64, "probe.batch": 64}  # defaults when the first runs were named
ONCE_NAMED = ("probe.batch",)  # free to change only since then


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
