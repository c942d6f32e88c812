"""The tables of methods, the functions that build one by name, and the position section of a run's config."""

import math
from collections.abc import Iterator
from dataclasses import field, fields
from typing import Annotated, Any

from lab.core.errors import look_up
from lab.core.schema import OneOf, Section, validated
from lab.positions.dca import Dca
from lab.positions.method import Distance, Frequencies, FrequencyMethod
from lab.positions.ntk import Abf, DynamicNtk, EntropyAbf, Ntk
from lab.positions.pi import Pi
from lab.positions.rope import Plain, Rope
from lab.positions.self_extend import LeakyRerope, Rerope, SelfExtend
from lab.positions.string import String
from lab.positions.yarn import Llama3, NtkByParts, Yarn

ROPE_THETA = 10000.0  # arXiv:2104.09864, section 3.2.2

FREQUENCY_METHODS: dict[str, type[FrequencyMethod]] = {
    str(method.method): method for method in (Rope, Pi, Ntk, DynamicNtk, NtkByParts, Yarn, Llama3, Abf, EntropyAbf)
}
DISTANCE_METHODS: dict[str, type[Distance]] = {
    str(method.method): method for method in (Plain, String, Dca, SelfExtend, Rerope, LeakyRerope)
}
AnyFrequency = Annotated[FrequencyMethod, OneOf(FrequencyMethod, FREQUENCY_METHODS)]
AnyDistance = Annotated[Distance, OneOf(Distance, DISTANCE_METHODS)]


class PositionConfig(Section):
    """How the model encodes positions; `method` selects, the other keys belong to the method."""

    frequency: AnyFrequency = field(default_factory=Rope)
    """Frequency method: rope, or one that changes the inverse frequencies or scales the logits."""
    distance: AnyDistance = field(default_factory=Plain)
    """Distance method: plain, or one that changes the relative positions."""

    def joint_rules(self, run: Any) -> Iterator[str]:
        """Reject distances beyond the lengths of the run, a base below the model's, and bands over ids with gaps."""
        frequency, distance, window = self.frequency, self.distance, run.data.window
        # Probes read texts beyond the window, where a method for long texts may first change something.
        longest = window
        if distance.beyond_training and run.probe is not None:
            longest = max(window, run.probe.longest(window))
        for error in (*distance.length_errors(longest), *run.model.distance_errors(distance)):
            yield f"position.distance.{error}"
        if (getattr(frequency, "theta", None) or math.inf) <= run.model.theta:
            rule = f"must be > model.theta={run.model.theta} (the adjusted base is larger)"
            yield run.format_error("position.frequency.theta", f"{rule}; raise it, or set model.theta and method: rope")
        if (getattr(distance, "train_len", None) or 0) > window:
            rule = f"must be <= data.window={window}, the longest distance that is counted; lower it"
            yield run.format_error("position.distance.train_len", rule)
        if run.bands and (run.skip or run.mask.running or run.mask.chunks is not None):
            rule = "training with it needs ids that count up from 0 in every document; leave one out"
            yield run.format_error(run.bands, rule)


class Replaced(Section):
    """Settings of a Hugging Face folder."""

    position: PositionConfig = field(default_factory=PositionConfig)
    """Position methods in place of the folder's own."""


def frequencies(method: str, *, head_dim: int, theta: float | None = None, **parameters: object) -> Frequencies:
    """Build a frequency method by name; the parameters are the fields of its class.

    Default of `theta`: 10,000, and 500,000 for the methods that adjust the base.

    Raises: ConfigError for an unknown method, an odd `head_dim` or a parameter out of the paper's range.
    """
    config_class = look_up(FREQUENCY_METHODS, method, "frequency.method")
    # A method with a base of its own takes it as a parameter, and has its own default.
    if theta is not None and "theta" in config_class.__dataclass_fields__:
        parameters["theta"] = theta
    base = ROPE_THETA if theta is None else theta
    return Frequencies.of(validated(config_class, parameters), head_dim, base)


def distance(method: str, **parameters: object) -> Distance:
    """Build a distance method by name; the parameters are the fields of its class.

    Raises: ConfigError for an unknown method or a parameter out of the paper's range.
    """
    return validated(look_up(DISTANCE_METHODS, method, "distance.method"), parameters)


def describe_method(config: FrequencyMethod | Distance) -> str:
    """Describe a method by its name and the parameters that are not at their defaults.

    Example:
        >>> describe_method(String(shift=3, window=0)), describe_method(Plain())
        ('string(shift=3,window=0)', 'plain')
    """
    values = [(setting.name, getattr(config, setting.name), setting.default) for setting in fields(config)]
    parameters = [f"{name}={brief_value(value)}" for name, value, default in values if value != default]
    return f"{config.method}({','.join(parameters)})" if parameters else config.method


def describe_pair(frequency: FrequencyMethod, distance: Distance) -> str:
    return f"{describe_method(frequency)}+{describe_method(distance)}"


def brief_value(value: object) -> str:
    """Format a parameter's value; of a list of numbers, the first and the last one.

    Example:
        >>> brief_value(0.25), brief_value((1.0, 1.5, 64.0)), brief_value(3)
        ('0.25', '1..64', '3')
    """
    if isinstance(value, tuple) and len(value) > 1:
        return f"{value[0]:g}..{value[-1]:g}"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
