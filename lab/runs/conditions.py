"""Names of conditions in words, as figures, tables and pages use them.

A run whose loss is masked by evidence is named by what is masked; any other setting by a phrase with its value.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from lab.positions.methods import brief_value

WEIGHTS = "weights"
UNMASKED = "unmasked"
MASKED = {"none": "far-masked", "near": "near-masked", "kind": "matched control", "random": "random control"}
DEFINITIONS = {  # of the names above, for the line under a picture or a table
    UNMASKED: "all targets have a loss",
    "far-masked": "the loss is masked for targets whose evidence is beyond D tokens, the end of weights.keep",
    "near-masked": "the same number of nearer targets is masked instead",
    "matched control": "near-masked, with the same number of digits of answers",
    "random control": "the same number of random targets is masked",
    "base model": "the run that the others continue",
}
PHRASES = {
    WEIGHTS: "{}",
    "weights.keep": "keeping {}",
    "data.window": "window of {}",
    "data.mode": "{} documents",
    "data.corpus.section_tokens": "sections of {}",
    "data.corpus.median_tokens": "documents of {}",
    "data.corpus.log_std": "length spread {}",
    "model.theta": "rotary base of {}",
    "train.tokens": "{} tokens",
    "start.path": "from {}",
}
CHOICES = ("method", "name", "by")  # last parts of settings that select a section's type


def name_weights(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the type and the control of a run's loss weights by the name of the condition.

    Example:
        >>> name_weights({"weights.by": "evidence", "weights.control": "kind", "run.seed": 0})
        {'run.seed': 0, 'weights': 'matched control'}
    """
    if "weights.by" not in settings:
        return {**settings, WEIGHTS: UNMASKED}
    name = MASKED[settings.get("weights.control", "none")]
    if not re.fullmatch(r"\[\[0, \d+\]\]", str(settings.get("weights.keep", "[[0, 0]]"))):
        name = name.replace("far-masked", "masked outside")  # of the intervals, which follow where they differ
    named = {**settings, WEIGHTS: name}
    del named["weights.by"]
    named.pop("weights.control", None)
    return named


def name_setting(key: str, value: Any) -> str:
    """Write a setting and its value in words.

    Example:
        >>> name_setting("data.window", 192), name_setting("position.distance.method", "dca")
        ('window of 192', 'distance dca')
        >>> name_setting("train.tokens", 3_000_000), name_setting("optim.min_lr", 0.001)
        ('3,000,000 tokens', 'min lr 0.001')
    """
    text = f"{value:,}" if isinstance(value, int) and value >= 10_000 else brief_value(value)
    # Several settings are joined by a comma and a space, by which the name is split again (arms.without_common).
    text = text.replace(", ", ",")
    if key in PHRASES:
        return PHRASES[key].format(text)
    *sections, last = key.split(".")
    name = sections[-1] if last in CHOICES and sections else last
    return f"{name.replace('_', ' ')} {text}"


def define_names(names: Iterable[str]) -> list[str]:
    """List the definitions of the words that occur in names of conditions."""
    text = " ".join(names)
    words = [word for word in DEFINITIONS if re.search(rf"(?<![\w-]){word}\b", text)]
    return [f"{word}: {DEFINITIONS[word]}" for word in words]
