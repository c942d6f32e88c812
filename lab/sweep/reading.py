"""Read a sweep file, as wandb reads it, and refuse what needs wandb's server or would be ignored."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from lab.errors import ConfigError
from lab.schema import NonNegative, Positive, Section
from lab.settings import Raw, validated
from lab.sweep.space import FORMS, IN_GRIDS, Parameter, Settings, draws, grid, grid_size

DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
SERVED = ("early_terminate", "controller", "scheduler", "metrics", "job", "image_uri")  # keys for wandb's server
SEED = "run.seed"
MOST_RUNS = 10_000  # each is read and checked before the first starts


@dataclass(frozen=True, kw_only=True)
class Metric(Section):
    """The metric that wandb shows the runs by."""

    name: str
    """A number that the runs record, for instance effective_length."""
    goal: Literal["minimize", "maximize"] = "minimize"
    """Whether small or large values are better."""


@dataclass(frozen=True, kw_only=True)
class SweepFile(Section):
    """A sweep in wandb's format."""

    method: Literal["grid", "random"]
    """Every combination, or random draws; bayes needs wandb's server: wandb sweep FILE."""
    parameters: dict[str, Any]
    """Settings by dotted name, each with value, values, or min and max."""
    command: tuple[Any, ...] = DEFAULT_COMMAND
    """Words of the command that starts a run; ${args} is replaced by the settings."""
    program: str | None = None
    """Replacement of ${program}."""
    run_cap: Positive | None = None
    """Maximum number of runs."""
    metric: Metric | None = None
    """Metric that wandb compares the runs by."""
    name: str | None = None
    """Name of the sweep at wandb."""
    description: str | None = None
    """Description of the sweep at wandb."""
    project: str | None = None
    """Project of the sweep at wandb."""
    entity: str | None = None
    """Entity of the sweep at wandb."""

    def rules(self) -> list[str]:
        """Refuse random draws without an end."""
        if self.method == "random" and self.run_cap is None:
            return ["run_cap: must be set where method=random, which draws without end; set the number of runs"]
        if self.method == "random" and self.run_cap is not None and self.run_cap > MOST_RUNS:
            return [f"run_cap={self.run_cap}: must be <= {MOST_RUNS:,}; split the sweep into several files"]
        return []


@dataclass(frozen=True)
class Sweep:
    """The command and the settings of every run, in order."""

    command: tuple[Any, ...]
    program: str | None
    settings: tuple[Settings, ...]


def read_sweep(path: Path, *, seeds: int | None = None, seed: NonNegative | None = None) -> Sweep:
    """Read a sweep file; `seeds` is the number of seeds of a grid, from 0, and `seed` that of random draws.

    Raises: ConfigError with a line for each fault.
    """
    raw = Raw.read(path)
    served = [key for key in SERVED if key in raw.values]
    if served:
        raise ConfigError(*(f"{path}: {key}: needs wandb's server; leave it out, or use wandb sweep" for key in served))
    file: SweepFile = validated(SweepFile, raw)
    parameters = dict(file.parameters)
    if seeds is not None:
        if file.method != "grid":
            raise ConfigError(f"--seeds={seeds}: goes with method: grid; leave it out")
        if seeds > MOST_RUNS:
            raise ConfigError(f"--seeds={seeds}: must be <= {MOST_RUNS:,}, the most runs of a sweep; lower it")
        parameters[SEED] = {"values": list(range(seeds))}
    if seed is not None and file.method == "grid":
        raise ConfigError(f"--seed={seed}: would be ignored, a grid draws nothing; leave it out")
    found = list(read_parameters(parameters, file.method))
    faults = [one for one in found if isinstance(one, str)]
    if faults or not found:
        raise ConfigError(*faults or ["parameters: must hold settings by dotted name; for instance run.seed"])
    known = [one for one in found if isinstance(one, Parameter)]
    if file.method == "grid":
        refuse_endless(known, file.run_cap)
        runs = list(islice(grid(known), file.run_cap))
    else:
        runs = list(draws(known, file.run_cap or 0, seed or 0))
    return Sweep(file.command, file.program, tuple(runs))


def refuse_endless(parameters: Sequence[Parameter], run_cap: int | None) -> None:
    """Refuse a grid of too many runs before its values are listed.

    Raises: ConfigError.
    """
    sizes = {".".join(("parameters", *parameter.name)): grid_size(parameter) for parameter in parameters}
    for field, size in sizes.items():
        if size > MOST_RUNS:
            raise ConfigError(f"{field}: has {size:,.0f} values, more than {MOST_RUNS:,} runs; narrow it")
    runs = min(math.prod(sizes.values()), run_cap or math.inf)
    if runs > MOST_RUNS:
        product = "*".join(f"{size:,.0f}" for size in sizes.values() if size > 1)
        raise ConfigError(
            f"parameters={product}: make {runs:,.0f} runs, must be <= {MOST_RUNS:,}; give fewer values, or set run_cap"
        )


def read_parameters(section: Mapping[str, Any], method: str, above: tuple[str, ...] = ()) -> Iterator[Parameter | str]:
    """Yield the parameters in the order of their names, or the line of a fault for each that is wrong."""
    for word in sorted(section, key=str):
        name, keys = (*above, str(word)), section[word]
        field = ".".join(("parameters", *name))
        if isinstance(keys, dict) and set(keys) == {"parameters"} and isinstance(keys["parameters"], dict):
            yield from read_parameters(keys["parameters"], method, name)
            continue
        distribution = distribution_of(keys)
        fault = form_fault(keys, distribution) or next(value_faults(keys, str(distribution)), None)
        if fault is None and method == "grid" and distribution not in IN_GRIDS:
            fault = f"distribution={distribution}: has no list of values for method: grid; give values, or use random"
        if fault is not None:
            yield f"{field}.{fault}" if isinstance(keys, dict) and keys else f"{field}={keys}: {fault}"
        else:
            yield Parameter(name, str(distribution), {**FORMS[str(distribution)][1], **keys})


def distribution_of(keys: Any) -> str | None:
    """Return the distribution of a parameter: the one it names, or the one that its keys imply."""
    if not isinstance(keys, dict) or "distribution" in keys:
        return keys.get("distribution") if isinstance(keys, dict) else None
    if "values" in keys:
        return "categorical_w_probabilities" if "probabilities" in keys else "categorical"
    if "value" in keys:
        return "constant"
    if "min" in keys and "max" in keys:
        return "int_uniform" if all(type(keys[end]) is int for end in ("min", "max")) else "uniform"
    return None


def form_fault(keys: Any, distribution: Any) -> str | None:
    """Return the first fault in the keys of a parameter, as the end of a line."""
    if not isinstance(keys, dict) or not keys:
        return "must be a section; write value: or values: below it"
    if distribution is None:
        return f"{next(iter(keys))}: is no parameter; give value, values, min and max, distribution or parameters"
    if distribution not in FORMS:
        exponents = f"{distribution}_values"
        near = [exponents] if exponents in FORMS else difflib.get_close_matches(str(distribution), FORMS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of: {', '.join(FORMS)}"
        return f"distribution={distribution}: unknown; {hint}"
    needed, defaults = FORMS[distribution]
    missing = [key for key in needed if key not in keys]
    if missing:
        return f"{missing[0]}: must be set where the distribution is {distribution}"
    unknown = [key for key in keys if key not in (*needed, *defaults, "distribution")]
    if unknown:
        use = ", ".join((*needed, *defaults))
        return f"{unknown[0]}={keys[unknown[0]]}: unknown where the distribution is {distribution}; it has {use}"
    return None


def value_faults(keys: Mapping[str, Any], distribution: str) -> Iterator[str]:
    """Yield the values of a parameter that its distribution cannot use, as ends of fault lines, in order."""
    for key in ("values", "probabilities"):
        if key in keys and not (isinstance(keys[key], list) and keys[key]):
            yield f"{key}={keys[key]}: must be a list; write [...]"
    numbers = {key: keys[key] for key in ("min", "max", "mu", "sigma", "a", "b", "q") if key in keys}
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            yield f"{key}={value}: must be a number; correct it"
        elif not math.isfinite(value):
            yield f"{key}={value}: must be a number that is finite; correct it"
        elif (key in ("a", "b", "q") or (key == "min" and "log" in distribution)) and value <= 0:
            yield f"{key}={value}: must be > 0; raise it"
    if "min" in numbers and numbers["min"] >= numbers["max"]:
        yield f"min={numbers['min']}: must be < max={numbers['max']}; exchange them"
    if numbers.get("sigma", 0) < 0:
        yield f"sigma={numbers['sigma']}: must be >= 0; leave the sign out"
    if distribution == "int_uniform" and not all(isinstance(value, int) for value in numbers.values()):
        yield f"min={numbers['min']}: must be a whole number, and max too; use uniform or q_uniform"
    shares = keys.get("probabilities")
    if shares is not None and (len(shares) != len(keys["values"]) or abs(sum(shares) - 1) > 1e-8):
        yield f"probabilities={shares}: must be one for each of values and sum to 1; correct them"
