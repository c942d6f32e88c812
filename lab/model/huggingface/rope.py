"""Rotary settings of config.json as a frequency method, both ways, as transformers 5.23 reads them; no torch.

`lab.model.huggingface.config` has the table of rope types. Settings that transformers ignores are ignored.
Source: modeling_rope_utils.py.
"""

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from lab.core.command import show
from lab.core.errors import ConfigError, abbreviate
from lab.core.types import JsonObject
from lab.positions import FREQUENCY_METHODS, Frequencies
from lab.positions.ntk import scaled_theta

ORIGINAL = "original_max_position_embeddings"
OF_LENGTH = ("yarn", "llama3")  # ORIGINAL is the train_len of these
READ_AS = {"default": "rope", "linear": "pi", "dynamic": "dynamic_ntk", "yarn": "yarn", "llama3": "llama3"}
WRITTEN_AS = {method: kind for kind, method in READ_AS.items()}
WRITTEN_AS |= {"abf": "default", "ntk": "default", "ntk_by_parts": "yarn"}


def name_ignored(config: Path, settings: JsonObject) -> None:
    """Print a line for each setting of other libraries that transformers, and therefore the lab, ignores."""
    fixes = {
        "dual_chunk_attention_config": f"Dual Chunk Attention is --distance=dca:train_len=LENGTH, its {ORIGINAL}",
        "rope_condense_ratio": "its positions are --frequency=pi:factor=RATIO",
    }
    for name, fix in fixes.items():
        if settings.get(name):
            show(f"{config}: {name} is ignored, transformers has no such setting; {fix}", error=True)


def list_parameters(method: str) -> list[str]:
    """List the parameters of a frequency method that transformers has by the same name."""
    names = [parameter.name for parameter in fields(FREQUENCY_METHODS[method])]
    return [name for name in names if name not in ("method", "theta", "train_len", "length")]


def rope_section(settings: JsonObject) -> tuple[str, JsonObject]:
    """Return the name and contents of the object in which config.json keeps rotary settings.

    Raises: ConfigError for one that is no object.
    """
    name = "rope_scaling" if settings.get("rope_scaling") else "rope_parameters"
    section = settings.get(name) or {}
    if not isinstance(section, dict):
        raise ConfigError(f"{name}={abbreviate(section)}: must be an object or null; copy config.json again")
    return name, section


def collect_rope(settings: JsonObject) -> JsonObject:
    """Collect the rotary settings from either form of config.json; an original length at the top wins."""
    section = {"partial_rotary_factor": settings.get("partial_rotary_factor"), **rope_section(settings)[1]}
    # The older name is popped in any case, so that it is no setting of the method.
    kind = str(section.pop("rope_type", section.pop("type", "default")))
    original = settings.get(ORIGINAL) or section.get(ORIGINAL)
    return {"rope_theta": settings.get("rope_theta", 10000.0), **section, "rope_type": kind, ORIGINAL: original}


def frequency_settings(settings: JsonObject) -> JsonObject:
    """Return the name of the frequency method under `method` and its parameters, theta apart; it checks them itself."""
    rope = collect_rope(settings)
    kind = rope["rope_type"]
    length = settings["max_position_embeddings"]
    original = int(rope[ORIGINAL] or length)
    values = {name: rope[name] for name in list_parameters(READ_AS[kind]) if rope.get(name) is not None}
    if kind == "dynamic":
        values["train_len"] = length
    if kind in OF_LENGTH:
        values["train_len"] = original
    if kind == "yarn":
        values |= yarn_settings(rope, length / original)
    return {"method": READ_AS[kind], **values}


def yarn_settings(rope: JsonObject, ratio: float) -> JsonObject:
    """Read YaRN's settings as transformers does: null or 0 as the default, two mscales as an attention factor."""
    values = {"beta_fast": rope.get("beta_fast") or 32.0, "beta_slow": rope.get("beta_slow") or 1.0}
    values["truncate"] = bool(rope.get("truncate", True))
    if "factor" in rope:
        values["factor"] = ratio if rope["factor"] is None else rope["factor"]
    # DeepSeek states two scales: the factor on cos and sin is the ratio of YaRN's factor for each.
    scale, other = rope.get("mscale"), rope.get("mscale_all_dim")
    if scale and other and rope.get("attention_factor") is None and "factor" in values:
        growth = 0.1 * math.log(max(1.0, values["factor"]))
        values["attention_factor"] = (1 + scale * growth) / (1 + other * growth)
    return values


def rope_settings(method: Frequencies, train_len: int | None) -> JsonObject:
    """Write a frequency method as transformers 4's settings, which transformers 5 reads as well.

    Raises: ConfigError for a method that these settings do not support.
    Example:
        >>> from lab.positions import frequencies
        >>> rope_settings(frequencies("pi", head_dim=4, factor=4.0), train_len=512)
        {'rope_theta': 10000.0, 'rope_scaling': {'rope_type': 'linear', 'factor': 4.0}, 'max_position_embeddings': 512}
    """
    config: Any = method.config
    if method.method not in WRITTEN_AS:
        raise ConfigError(
            f"frequencies={method.method}: not supported by a Hugging Face folder; export it by --weights_only, or "
            "save abf of the same theta, and pass frequencies to load_pretrained"
        )
    if getattr(config, "length", None) is not None:
        raise ConfigError(f"frequencies.length={config.length}: not supported by a Hugging Face folder; leave it out")
    kind = WRITTEN_AS[method.method]
    settings: JsonObject = {"rope_theta": method.theta, "rope_scaling": None}
    if method.method == "ntk":  # which is rope with another base
        settings["rope_theta"] = scaled_theta(method.theta, config.factor, head_dim=2 * len(method.inv_freq))
    if kind != "default":
        scaling: JsonObject = {"rope_type": kind}
        settings["rope_scaling"] = scaling
        for name in list_parameters(method.method):
            if getattr(config, name) is not None:
                scaling[name] = getattr(config, name)
        if kind in OF_LENGTH:
            scaling[ORIGINAL] = config.train_len
        if method.method == "ntk_by_parts":  # which is yarn without its factor on the logits
            scaling["attention_factor"] = 1.0
    length = written_length(method, train_len)
    if length is not None:
        settings["max_position_embeddings"] = length
    return settings


def written_length(method: Frequencies, train_len: int | None) -> int | None:
    """Choose max_position_embeddings: `train_len`, else the length that the method extends to, else unknown.

    Raises: ConfigError for a length that would change what the method computes.
    """
    trained = getattr(method.config, "train_len", None)
    if method.method == "dynamic_ntk":  # transformers computes its factors from max_position_embeddings
        if train_len not in {None, trained}:
            raise ConfigError(f"train_len={train_len}: must be {trained}, that of the frequencies; leave it out")
        return trained
    factor = getattr(method.config, "factor", None)
    if not train_len and factor and trained:
        return int(factor * trained)
    return train_len
