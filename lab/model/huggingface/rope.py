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
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, create_model

from lab.errors import ConfigError
from lab.positions import Frequencies, frequencies
from lab.positions.ntk import scaled_theta

ORIGINAL = "original_max_position_embeddings"
Number = Annotated[float, Field(strict=True)]
Numbers = Annotated[list[Number], Field(min_length=1)]


NEEDED, MAY_BE_NULL = (Number, ...), (Number | None, None)  # types and defaults of pydantic's fields


class Default(BaseModel):
    """The settings that every rope_type may have; `Rope` reads them."""

    model_config = ConfigDict(extra="forbid")
    rope_type: Any = None
    type: Any = None
    rope_theta: Any = None
    partial_rotary_factor: Any = None
    original_max_position_embeddings: Number | None = None


OF_YARN: dict[str, Any] = {
    **dict.fromkeys(("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"), MAY_BE_NULL),
    "truncate": (StrictBool, True),
}
OF_LONGROPE: dict[str, Any] = {
    **dict.fromkeys(("short_factor", "long_factor"), (Numbers, ...)),
    **dict.fromkeys(("factor", "attention_factor"), MAY_BE_NULL),
}
SCHEMAS: dict[str, type[Default]] = {
    "default": Default,
    "linear": create_model("Linear", __base__=Default, factor=NEEDED),
    "dynamic": create_model("Dynamic", __base__=Default, factor=NEEDED),
    "yarn": create_model("Yarn", __base__=Default, factor=NEEDED, **OF_YARN),
    "llama3": create_model("Llama3", __base__=Default, factor=NEEDED, low_freq_factor=NEEDED, high_freq_factor=NEEDED),
    "longrope": create_model("LongRope", __base__=Default, **OF_LONGROPE),
}
READ_AS = {"default": "rope", "linear": "pi", "dynamic": "dynamic_ntk"}
STATE_LENGTH = ("yarn", "llama3", "longrope")  # by original_max_position_embeddings
READ_AS |= {name: name for name in STATE_LENGTH}
WRITTEN_AS = {method: kind for kind, method in READ_AS.items()} | {
    "abf": "default",
    "ntk": "default",
    "ntk_by_parts": "yarn",
}
RULES = {  # of what pydantic finds wrong
    "float_type": "must be a number; correct config.json",
    "bool_type": "must be true or false; correct config.json",
    "int_type": "must be a whole number >= 1; correct config.json",
    "greater_than_equal": "must be a whole number >= 1; correct config.json",
}


def faults_of(schema: type[BaseModel], values: Mapping[str, Any], prefix: str = "", **rules: str) -> list[str]:
    """List what a schema refuses, a line for each setting; `rules` go before RULES."""
    faults: dict[str, str] = {}
    try:
        schema.model_validate(dict(values))
    except ValidationError as error:
        for found in error.errors():
            name, *inside = found["loc"]
            rule = {**RULES, **rules}.get(found["type"])
            if inside or rule is None:
                line = f"{prefix}{name}: must be a list of numbers; correct config.json"
            elif found["type"] == "missing":
                line = f"{prefix}{name}: {rule}"
            else:
                line = f"{prefix}{name}={values[str(name)]}: {rule}"
            faults.setdefault(str(name), line)
    return list(faults.values())


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

    def faults(self, own_frequencies: bool) -> list[str]:
        """List the faults; with frequencies of the caller's own those that remain under any method."""
        faults = [] if is_number(self.theta) else [f"rope_theta={self.theta}: must be a number; correct config.json"]
        if self.partial is not None and self.partial != 1:
            rule = "must be 1, the lab rotates every pair; use another model"
            faults.append(f"partial_rotary_factor={self.partial}: {rule}")
        if own_frequencies:
            return faults
        if self.kind not in SCHEMAS:
            rule = f"must be one of {', '.join(SCHEMAS)}; pass frequencies to load_pretrained"
            return [*faults, f"{self.section}.rope_type={self.kind}: {rule}"]
        missing = f"missing, rope_type {self.kind} needs it; correct config.json"
        unknown = f"unknown for rope_type {self.kind}; pass frequencies to load_pretrained"
        schema, prefix = SCHEMAS[self.kind], f"{self.section}."
        return faults + faults_of(schema, self.values, prefix, missing=missing, extra_forbidden=unknown)

    def frequencies(self, head_dim: int) -> Frequencies:
        """Build the frequency method.

        Raises: ConfigError for parameters out of the paper's range.
        """
        return frequencies(READ_AS[self.kind], head_dim=head_dim, theta=float(self.theta), **self.parameters())

    def parameters(self) -> dict[str, Any]:
        """Return the method's parameters, for settings without faults.

        Source: transformers, _compute_yarn_parameters:
            attention_factor = (0.1 mscale ln factor + 1) / (0.1 mscale_all_dim ln factor + 1)
        """
        read = SCHEMAS[self.kind](**self.values).model_dump()
        out = {name: read[name] for name in own_fields(self.kind) if read[name] is not None}
        if self.kind in STATE_LENGTH:
            out["train_len"] = int(read[ORIGINAL] or self.max_positions)
        if self.kind == "dynamic":
            out["train_len"] = self.max_positions
        if self.kind == "longrope":
            out |= {name: tuple(out[name]) for name in ("short_factor", "long_factor")}
            out.setdefault("factor", max(1.0, self.max_positions / out["train_len"]))
        if self.kind == "yarn":
            mscale, all_dim = out.pop("mscale", None), out.pop("mscale_all_dim", None)
            if read["attention_factor"] is None and mscale and all_dim:
                growth = 0.1 * math.log(max(out["factor"], 1.0))
                out["attention_factor"] = (growth * mscale + 1) / (growth * all_dim + 1)
            out |= {"beta_fast": out.get("beta_fast") or 32.0, "beta_slow": out.get("beta_slow") or 1.0}
        return out


def own_fields(kind: str) -> list[str]:
    """List the settings of a rope_type alone."""
    return [name for name in SCHEMAS[kind].model_fields if name not in Default.model_fields]


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
    scaling = {name: getattr(config, name) for name in own_fields(kind) if getattr(config, name, None) is not None}
    if kind in STATE_LENGTH:
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
