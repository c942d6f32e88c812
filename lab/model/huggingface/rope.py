"""The rotary settings of a Hugging Face config.json as a frequency method, both ways; no torch.

    rope_type   method         its parameters
    default     rope           theta
    linear      pi             factor
    dynamic     dynamic_ntk    factor; train_len is max_position_embeddings
    yarn        yarn           factor, train_len, beta_fast, beta_slow, attention_factor, truncate
    llama3      llama3         factor, train_len, low_freq_factor, high_freq_factor
    longrope    longrope       short_factor, long_factor, factor, train_len, attention_factor

In the last three train_len is original_max_position_embeddings, or max_position_embeddings where that is left out.
Saving also writes abf and ntk as default with their theta, and ntk_by_parts as yarn with attention_factor 1.

transformers 4 keeps rope_theta at the top and the rest in rope_scaling, transformers 5 keeps all in rope_parameters and
reads both. Source: transformers 5.23, modeling_rope_utils.py, which reading follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.errors import ConfigError
from lab.positions import Frequencies, frequencies
from lab.positions.ntk import scaled_theta

ORIGINAL = "original_max_position_embeddings"
BANDS = ("low_freq_factor", "high_freq_factor")
LISTS = ("short_factor", "long_factor")
NULLABLE = (ORIGINAL, "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")
TAKES = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", *NULLABLE, "truncate"),
    "llama3": ("factor", ORIGINAL, *BANDS),
    "longrope": (*LISTS, "factor", ORIGINAL, "attention_factor"),
}
EVERYWHERE = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
READ_AS = {"default": "rope", "linear": "pi", "dynamic": "dynamic_ntk"}
READ_AS |= {name: name for name in ("yarn", "llama3", "longrope")}
WRITTEN_AS = {method: kind for kind, method in READ_AS.items()} | {
    "abf": "default",
    "ntk": "default",
    "ntk_by_parts": "yarn",
}


@dataclass(frozen=True)
class Rope:
    """The rotary settings of one config.json; `section` is the key that holds them there, for messages."""

    section: str
    kind: str
    theta: Any
    partial: Any
    values: Mapping[str, Any]
    max_positions: int

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Rope:
        """Find the settings in either form."""
        section = "rope_scaling" if settings.get("rope_scaling") else "rope_parameters"
        values = dict(settings.get(section) or {})
        if settings.get(ORIGINAL) is not None:
            values[ORIGINAL] = settings[ORIGINAL]
        theta = values.get("rope_theta", settings.get("rope_theta", 10000.0))
        partial = values.get("partial_rotary_factor", settings.get("partial_rotary_factor"))
        kind = str(values.get("rope_type", values.get("type", "default")))
        return cls(section, kind, theta, partial, values, settings["max_position_embeddings"])

    def faults(self) -> list[str]:
        """List the faults that remain under any frequency method."""
        faults = [] if is_number(self.theta) else [f"rope_theta={self.theta}: must be a number; correct config.json"]
        if self.partial is not None and self.partial != 1:
            rule = "must be 1, the lab rotates every pair; use another model"
            faults.append(f"partial_rotary_factor={self.partial}: {rule}")
        return faults

    def frequencies(self, head_dim: int) -> Frequencies:
        """Build the frequency method.

        Raises: ConfigError for parameters out of the paper's range.
        """
        return frequencies(READ_AS[self.kind], head_dim=head_dim, theta=float(self.theta), **self.parameters())

    def method_faults(self) -> list[str]:
        """List why the settings are not a frequency method: an unknown type or key, a missing or wrong value."""
        if self.kind not in TAKES:
            rule = f"must be one of {', '.join(TAKES)}; pass frequencies to load_pretrained"
            return [f"{self.section}.rope_type={self.kind}: {rule}"]
        takes = TAKES[self.kind]
        nullable = (*NULLABLE, "factor") if self.kind == "longrope" else NULLABLE
        faults = [
            f"{self.section}.{name}={value}: unknown for rope_type {self.kind}; pass frequencies to load_pretrained"
            for name, value in self.values.items()
            if name not in {*takes, *EVERYWHERE, ORIGINAL}
        ]
        for name in takes:
            value = self.values.get(name)
            if name not in self.values and name not in {*nullable, "truncate"}:
                faults.append(f"{self.section}.{name}: missing, rope_type {self.kind} needs it; correct config.json")
            elif name == "truncate" and not isinstance(self.values.get(name, True), bool):
                faults.append(f"{self.section}.{name}={value}: must be true or false; correct config.json")
            elif name in LISTS and not (isinstance(value, list) and value and all(map(is_number, value))):
                faults.append(f"{self.section}.{name}: must be a list of numbers; correct config.json")
            elif name not in (*LISTS, "truncate") and not is_number(value) and not (value is None and name in nullable):
                faults.append(f"{self.section}.{name}={value}: must be a number; correct config.json")
        return faults

    def parameters(self) -> dict[str, Any]:
        """Return the method's parameters, for settings without faults."""
        out: dict[str, Any] = {}
        if "factor" in TAKES[self.kind] and self.values.get("factor") is not None:
            out["factor"] = float(self.values["factor"])
        if self.kind == "dynamic":
            out["train_len"] = self.max_positions
        if ORIGINAL in TAKES[self.kind]:
            out["train_len"] = int(self.values.get(ORIGINAL) or self.max_positions)
        if self.kind == "llama3":
            out |= {name: float(self.values[name]) for name in BANDS}
        if self.kind == "longrope":
            out |= {name: tuple(map(float, self.values[name])) for name in LISTS}
            out["attention_factor"] = self.values.get("attention_factor")
            out.setdefault("factor", max(1.0, self.max_positions / out["train_len"]))
        if self.kind == "yarn":
            out |= self.yarn_parameters(out["factor"])
        return out

    def yarn_parameters(self, factor: float) -> dict[str, Any]:
        """Return yarn's own parameters; mscale and mscale_all_dim together make an attention_factor.

        Source: transformers, _compute_yarn_parameters:
            attention_factor = (0.1 mscale ln factor + 1) / (0.1 mscale_all_dim ln factor + 1)
        """
        get = self.values.get
        attention_factor = get("attention_factor")
        if attention_factor is None and get("mscale") and get("mscale_all_dim"):
            growth = 0.1 * math.log(max(factor, 1.0))
            attention_factor = (growth * self.values["mscale"] + 1) / (growth * self.values["mscale_all_dim"] + 1)
        return {
            "beta_fast": float(get("beta_fast") or 32),
            "beta_slow": float(get("beta_slow") or 1),
            "attention_factor": attention_factor,
            "truncate": get("truncate", True),
        }


def rope_settings(method: Frequencies, train_len: int | None) -> dict[str, Any]:
    """Write a frequency method as transformers 4's settings, which transformers 5 reads as well.

    Raises: ConfigError for a method that these settings do not support.
    Example:
        >>> rope_settings(frequencies("pi", head_dim=4, factor=4.0), train_len=512)
        {'rope_theta': 10000.0, 'rope_scaling': {'rope_type': 'linear', 'factor': 4.0}, 'max_position_embeddings': 512}
    """
    if method.method not in WRITTEN_AS:
        raise ConfigError(
            f"frequencies={method.method}: not supported by a Hugging Face folder; save the decoder with abf of the "
            "same theta and pass frequencies to load_pretrained"
        )
    config: Any = method.config
    kind = WRITTEN_AS[method.method]
    if getattr(config, "length", None) is not None:
        raise ConfigError(f"frequencies.length={config.length}: not supported by a Hugging Face folder; leave it out")
    theta = method.theta
    if method.method == "ntk":
        theta = scaled_theta(theta, config.factor, head_dim=2 * len(method.inv_freq))
    scaling = {name: getattr(config, name) for name in TAKES[kind] if getattr(config, name, None) is not None}
    if ORIGINAL in TAKES[kind]:
        scaling[ORIGINAL] = config.train_len
    if method.method == "ntk_by_parts":
        scaling["attention_factor"] = 1.0
    settings: dict[str, Any] = {
        "rope_theta": theta,
        "rope_scaling": {"rope_type": kind, **scaling} if scaling else None,
    }
    max_positions = written_length(method, train_len)
    return settings | ({} if max_positions is None else {"max_position_embeddings": max_positions})


def written_length(method: Frequencies, train_len: int | None) -> int | None:
    """Choose max_position_embeddings: as given, else the length that the method extends to, else unknown.

    Raises: ConfigError for a length that would change what the method computes.
    """
    if train_len is not None and train_len < 1:
        raise ConfigError(f"train_len={train_len}: must be >= 1; leave it out where it is not known")
    trained, factor = getattr(method.config, "train_len", None), getattr(method.config, "factor", None)
    if method.method == "dynamic_ntk":
        if train_len not in {None, trained}:
            raise ConfigError(f"train_len={train_len}: must be {trained}, that of the frequencies; leave it out")
        return trained
    return train_len or (int(factor * trained) if factor and trained else None)


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number, which true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
