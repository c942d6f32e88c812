"""Distance methods as words of a command line: NAME, or NAME:parameter=value,parameter=value.

A name alone takes the parameters at which eval.methods compares methods; eval/common/method_settings.py has the
formulas.
"""

from __future__ import annotations

from eval.common.method_settings import setting
from lab.errors import ConfigError
from lab.parsing import parse_yaml
from lab.positions import Distance, distance
from lab.positions.config import PositionConfig
from lab.settings import Raw, validated

DERIVED = ("string", "dca", "self_extend", "rerope")


def read_distance(word: str, train_len: int, length: int) -> Distance:
    """Build the method that a word names, for texts of a length.

    Raises: ConfigError, whose lines name settings as --distance.parameter.
    Example:
        >>> read_distance("dca:train_len=128,chunk=96", 192, 192).chunk, read_distance("string", 192, 192).shift
        (96, 64)
    """
    name, colon, text = word.partition(":")
    if not colon and name in DERIVED:
        return distance(**setting(name, train_len, length).distance)
    parts = [part.partition("=") for part in text.split(",")] if colon else []
    if not all(key and equals and value for key, equals, value in parts):
        raise ConfigError(
            f"--distance={word}: must be NAME or NAME:parameter=value,...; write string:shift=64,window=32"
        )
    parameters = {key: parse_yaml(value, f"--distance={word}") for key, _, value in parts}
    try:
        built: Distance = validated(
            PositionConfig, Raw({"distance": {**parameters, "method": name}}, "--distance")
        ).distance
    except ConfigError as error:
        raise ConfigError(*(f"--{fault}" for fault in error.faults)) from error
    return built
