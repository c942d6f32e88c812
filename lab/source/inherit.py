"""Inherit settings from the weights that a run starts from: architecture, tokenizer and positions; no torch.

Settings that the run's config leaves out are inherited; an architecture that it states must match the source's.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from lab.errors import ConfigError
from lab.model.config import DecoderConfig
from lab.settings import part
from lab.source.describe import Source, read_source

FREE = ("theta", "embedding_std", "head_chunk")  # settings of the model that are not part of its architecture
BASES = {16_384: 1e6, 32_768: 1e6, 65_536: 5e6, 131_072: 1e7, 262_144: 5e7}
"""RoPE base by target length in tokens: arXiv:2411.13476, the table of rotary bases."""


def inherit(values: dict[str, Any], given: dict[str, Any]) -> None:
    """Add the settings of the source that start.path names to a run's raw settings.

    `given` are the settings including those of the command line, which determine what was left out.

    Raises: ConfigError for an architecture other than that of the source, CheckpointError for a path without weights.
    """
    path = part(given, "start").get("path")
    model, data = part(given, "model"), part(given, "data")
    names = [f.name for f in dataclasses.fields(DecoderConfig)]
    resolved = all(name in model for name in names) and "tokenizer" in data and "position" in given
    if not isinstance(path, str) or resolved:
        return  # nothing to start from, or a run folder's config, which is complete
    source = read_source(Path(path), own_frequencies="frequency" in part(given, "position"))
    faults = [
        f"model.{name}={model[name]}: the weights of start.path={path} have {source.model.get(name)}; leave it out"
        for name in names
        if name in model and name not in FREE and model[name] != source.model.get(name)
    ]
    if faults:
        raise ConfigError(*faults)
    values["model"] = {**source.model, **extended_base(source, given), **part(values, "model")}
    values["position"] = {**source.position, **part(values, "position")}
    if "tokenizer" not in data and source.tokenizer is None:
        raise ConfigError(
            f"data.tokenizer: must be set, start.path={path} holds no tokenizer.json with a known end token; set "
            "method: file, path and eos"
        )
    if "tokenizer" not in data:
        values["data"] = {**part(values, "data"), "tokenizer": source.tokenizer}


def extended_base(source: Source, given: dict[str, Any]) -> dict[str, float]:
    """Choose the rotary base for a longer window, where neither it nor a frequency method is given."""
    window = part(given, "skip").get("target_len", part(given, "data").get("window"))
    scaled = part(source.position, "frequency").get("method", "rope") != "rope"
    chosen = scaled or "theta" in part(given, "model") or "frequency" in part(given, "position")
    if chosen or not isinstance(window, int) or (source.window is not None and window <= source.window):
        return {}
    base = base_for(window)
    return {"theta": base} if base is not None and base > source.model["theta"] else {}


def base_for(target_len: int) -> float | None:
    """Return the rotary base for a target length; none below 16K tokens.

    Source: arXiv:2411.13476, the table of rotary bases by training length.
    Example:
        >>> base_for(65_536), base_for(100_000), base_for(2_048)
        (5000000.0, 10000000.0, None)
    """
    if target_len < min(BASES):
        return None
    return next((base for length, base in BASES.items() if target_len <= length), max(BASES.values()))
