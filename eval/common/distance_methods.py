"""The options --distance and --frequency: NAME, or NAME:parameter=value,parameter=value.

A name alone takes the parameters at which eval.methods compares methods; eval/common/method_settings.py has the
formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.common.method_settings import setting
from lab.config import load_experiment
from lab.errors import ConfigError
from lab.model.huggingface.config import read_settings
from lab.positions import Distance
from lab.positions.config import PositionConfig
from lab.settings import Raw, parse_method, validated
from lab.source.place import CONFIG, find_place

DERIVED = {"distance": ("string", "dca", "self_extend", "rerope"), "frequency": ("ntk", "yarn")}
PREFIX = "position.distance."


def read_distance(word: str, train_len: int, length: int) -> Distance:
    """Build the method that a word names, for texts of a length.

    Raises: ConfigError, whose lines name settings as --distance.parameter.
    Example:
        >>> read_distance("dca:train_len=128,chunk=96", 192, 192).chunk, read_distance("string", 192, 192).shift
        (96, 64)
    """
    given = parse_method(word, "--distance")
    if is_named_alone("distance", given):
        given = setting(given["method"], train_len, length).distance
    try:
        built: Distance = validated(PositionConfig, Raw({"distance": given}, "--distance")).distance
    except ConfigError as error:
        raise ConfigError(*(f"--{fault}" for fault in error.faults)) from error
    return built


def split_words(text: str) -> list[str]:
    """Split several words at the commas between them, not at those between parameters.

    Example:
        >>> split_words("rope, string:shift=64,window=32,dca")
        ['rope', 'string:shift=64,window=32', 'dca']
    """
    words: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if words and ":" in words[-1] and "=" in part and ":" not in part:
            words[-1] += f",{part}"
        else:
            words.append(part)
    return words


def is_named_alone(kind: str, given: Mapping[str, Any]) -> bool:
    """Return whether settings name a method whose parameters can be derived, and none of them."""
    return set(given) == {"method"} and given["method"] in DERIVED[kind]


def method_overrides(model: Path, words: Mapping[str, str | None], length: int | None) -> dict[str, Any]:
    """Read the words of --distance and --frequency as settings of a model, for texts of a length.

    The length is the training window where it is None.

    Raises: LabError, also for a model that cannot be opened; its weights are not read.
    """
    overrides: dict[str, Any] = {}
    for kind, word in words.items():
        given = parse_method(word, f"--{kind}") if word is not None else {}
        if is_named_alone(kind, given):
            train_len = train_len_of(model)
            derived = setting(given["method"], train_len, length or train_len)
            given = derived.distance if kind == "distance" else derived.frequency
        overrides |= {f"position.{kind}.{name}": value for name, value in given.items()}
    return overrides


def train_len_of(model: Path) -> int:
    """Read the training window of a model, without its weights.

    Raises: LabError.
    """
    place = find_place(model)
    if place.is_hugging_face:
        return int(read_settings(place.folder)["max_position_embeddings"])
    return load_experiment(place.home / CONFIG).data.window
