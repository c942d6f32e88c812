"""The option --distance: NAME, or NAME:parameter=value,parameter=value.

A name alone takes the parameters at which eval.methods compares methods; eval/common/method_settings.py has the
formulas.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from eval.common.command import Request
from eval.common.method_settings import setting
from lab.config import load_experiment
from lab.errors import ConfigError
from lab.model.huggingface.config import read_settings
from lab.parsing import parse_yaml
from lab.positions import Distance
from lab.positions.config import PositionConfig
from lab.positions.methods import DISTANCE_METHODS
from lab.schema import field_docs
from lab.settings import Raw, validated
from lab.source.place import CONFIG, find_place

DERIVED = ("string", "dca", "self_extend", "rerope")
PREFIX = "position.distance."


def read_distance(word: str, train_len: int, length: int) -> Distance:
    """Build the method that a word names, for texts of a length.

    Raises: ConfigError, whose lines name settings as --distance.parameter.
    Example:
        >>> read_distance("dca:train_len=128,chunk=96", 192, 192).chunk, read_distance("string", 192, 192).shift
        (96, 64)
    """
    method, *others = split_word(word)
    if not all(key and value for key, value in others):
        raise ConfigError(
            f"--distance={word}: must be NAME or NAME:parameter=value,...; write string:shift=64,window=32"
        )
    given = dict([method, *((key, parse_yaml(value, f"--distance={word}")) for key, value in others)])
    if is_named_alone(given):
        given = setting(given["method"], train_len, length).distance
    try:
        built: Distance = validated(PositionConfig, Raw({"distance": given}, "--distance")).distance
    except ConfigError as error:
        raise ConfigError(*(f"--{fault}" for fault in error.faults)) from error
    return built


def split_word(word: str) -> list[tuple[str, str]]:
    """Split a word into pairs of a setting and its text, the method first.

    Example:
        >>> split_word("string:shift=64,window=32")
        [('method', 'string'), ('shift', '64'), ('window', '32')]
    """
    name, colon, text = word.partition(":")
    parts = [part.partition("=") for part in text.split(",")] if colon else []
    return [("method", name), *((key, value) for key, _, value in parts)]


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


def is_named_alone(given: Mapping[str, Any]) -> bool:
    """Return whether settings name a method whose parameters can be derived, and none of them."""
    return set(given) == {"method"} and given["method"] in DERIVED


def expand_distance(words: Sequence[str]) -> list[str]:
    """Replace --distance, and options named as parameters of its method, by settings of position.distance.

    Example:
        >>> expand_distance(["runs/x", "--distance", "string", "--shift=8", "--limit", "5"])
        ['runs/x', '--limit', '5', '--position.distance.method=string', '--position.distance.shift=8']
    """
    named, rest = taken(words, ["distance"])
    pairs = [pair for _, word in named for pair in split_word(word)]
    method = DISTANCE_METHODS.get(pairs[0][1]) if pairs else None
    parameters, rest = taken(rest, field_docs(method) if method else ())
    return [*rest, *(f"--{PREFIX}{key}={value}" for key, value in [*pairs, *parameters])]


def taken(words: Sequence[str], names: Sequence[str] | Mapping[str, Any]) -> tuple[list[tuple[str, str]], list[str]]:
    """Take options out of a command line: their names and values, and the other words."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(f"--{name}", dest=name, nargs="?", const="", action="append", default=[])
    found, rest = parser.parse_known_args(list(words))
    return [(name, value) for name in names for value in getattr(found, name)], rest


def with_derived_parameters(request: Request, length: int | None) -> Request:
    """Add the parameters of a distance method that is only named, for texts of a length; None is the training window.

    Raises: LabError for a model that cannot be opened; its weights are not read.
    """
    given = {key.removeprefix(PREFIX): value for key, value in request.overrides.items() if key.startswith(PREFIX)}
    if not is_named_alone(given):
        return request
    place = find_place(request.model)
    if place.is_hugging_face:
        train_len = int(read_settings(place.folder)["max_position_embeddings"])
    else:
        train_len = load_experiment(place.home / CONFIG).data.window
    derived = setting(given["method"], train_len, length or train_len).distance
    return request._replace(overrides={**request.overrides, **{PREFIX + name: derived[name] for name in derived}})
