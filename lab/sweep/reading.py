"""Read a sweep file in wandb's format: the settings of every run of a grid, or of random draws.

A grid is the product of the values, the parameters in the order of their names and the last one varying fastest. A
random draw takes, parameter by parameter in the same order, the quantile of the parameter's distribution at a uniform
number between 0 and 1; lab.sweep seeds these by --seed. As wandb infers it, `min` and `max` are int_uniform where both
are whole numbers and uniform otherwise. Whatever needs wandb's server is refused.

Source: the package sweeps 0.3.0, grid_search.py, random_search.py and params.py.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lab.errors import ConfigError
from lab.schema import NonNegative, Positive, Section, read_yaml, validated

DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
SERVED = ("early_terminate", "controller", "scheduler", "metrics", "job", "image_uri")  # keys for wandb's server
SEED = "run.seed"
MOST_RUNS = 10_000  # each is read and checked before the first starts

NOT_GIVEN = object()  # null is a value

Settings = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Metric(Section):
    """The metric that wandb shows the runs by."""

    name: str
    """A number that the runs record, for instance effective_length."""
    goal: Literal["minimize", "maximize"] = "minimize"
    """Whether small or large values are better."""


@dataclass(frozen=True, kw_only=True)
class Parameter(Section):
    """A parameter of a sweep: one value, a list of values, or a range."""

    value: Any = NOT_GIVEN
    """The value of every run."""
    values: tuple[Any, ...] | None = None
    """The values to try."""
    min: float | int | None = None
    """Lower end of a range."""
    max: float | int | None = None
    """Upper end of a range."""
    distribution: Literal["int_uniform", "uniform", "log_uniform_values"] | None = None
    """How a range is drawn from; left out, int_uniform where both ends are whole numbers, else uniform."""

    def rules(self) -> list[str]:
        """Refuse a parameter without values, or with several kinds of them, and ranges that hold nothing."""
        if (self.value is not NOT_GIVEN) + (self.values is not None) + (self.min is not None) != 1:
            return ["value: goes alone, and so do values, and min and max; give one of them"]
        if self.values == ():
            return ["values=[]: must hold one or more; add a value"]
        if (self.min is None) != (self.max is None) or (self.min is None and self.distribution is not None):
            return [f"max={self.max}: goes with min and with distribution; give them together"]
        if self.min is None or self.max is None:
            return []
        faults = [] if self.min < self.max else [f"min={self.min}: must be < max={self.max}; exchange them"]
        if self.law == "log_uniform_values" and self.min <= 0:
            faults.append(f"min={self.min}: must be > 0; raise it")
        if self.law == "int_uniform" and not (isinstance(self.min, int) and isinstance(self.max, int)):
            faults.append(f"min={self.min}: must be a whole number, and max too; use distribution: uniform")
        return faults

    @property
    def law(self) -> str:
        """The distribution of a range."""
        whole = isinstance(self.min, int) and isinstance(self.max, int)
        return self.distribution or ("int_uniform" if whole else "uniform")

    @property
    def size(self) -> float:
        """How many values a grid takes; infinite for a range of real numbers."""
        if self.min is None or self.max is None:
            return len(self.values or (None,))
        return self.max + 1 - self.min if self.law == "int_uniform" else math.inf

    def listed(self) -> list[Any]:
        """List the distinct values of a grid."""
        if self.min is not None and self.max is not None:
            return list(range(int(self.min), int(self.max) + 1))
        known = {json.dumps(value, sort_keys=True): value for value in map(whole, self.values or [self.value])}
        return list(known.values())

    def quantile(self, x: float) -> Any:
        """Return the value below which the distribution has the probability x.

        Example:
            >>> Parameter(min=3, max=5).quantile(0.4), Parameter(values=("a", "b")).quantile(0.6)
            (4, 'b')
        """
        if self.min is None or self.max is None:
            values = self.values or (self.value,)
            return whole(values[place(x, len(values))])
        if self.law == "int_uniform":
            return int(self.min) + place(x, int(self.max) - int(self.min) + 1)
        if self.law == "uniform":
            return whole(self.min + x * (self.max - self.min))
        low, high = math.log(self.min), math.log(self.max)
        return math.exp(low + x * (high - low))


@dataclass(frozen=True, kw_only=True)
class SweepFile(Section):
    """A sweep in wandb's format."""

    method: Literal["grid", "random"]
    """Every combination, or random draws; bayes needs wandb's server: wandb sweep FILE."""
    parameters: dict[str, Parameter]
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
        """Refuse random draws without an end, grids of too many runs, and no parameters."""
        if not self.parameters:
            return ["parameters={}: must hold settings by dotted name; for instance run.seed"]
        if self.method == "random" and self.run_cap is None:
            return ["run_cap: must be set where method=random, which draws without end; set the number of runs"]
        runs = math.prod(one.size for one in self.parameters.values()) if self.method == "grid" else math.inf
        runs = min(runs, self.run_cap or math.inf)
        endless = [name for name, one in self.parameters.items() if self.method == "grid" and math.isinf(one.size)]
        if endless:
            return [f"parameters.{endless[0]}: has no list of values for method: grid; give values, or use random"]
        if runs > MOST_RUNS:
            return [f"parameters: make {runs:,.0f} runs, must be <= {MOST_RUNS:,}; give fewer values, or lower run_cap"]
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
    values = read_yaml(path)
    served = [key for key in SERVED if key in values]
    if served:
        raise ConfigError(*(f"{path}: {key}: needs wandb's server; leave it out, or use wandb sweep" for key in served))
    is_grid = values.get("method") == "grid"
    if seeds is not None and not is_grid:
        raise ConfigError(f"--seeds={seeds}: goes with method: grid; leave it out")
    if seed is not None and is_grid:
        raise ConfigError(f"--seed={seed}: would be ignored, a grid draws nothing; leave it out")
    if seeds is not None and isinstance(values.get("parameters"), dict):
        values["parameters"][SEED] = {"values": list(range(min(seeds, MOST_RUNS + 1)))}
    file: SweepFile = validated(SweepFile, values)
    parameters = dict(sorted(file.parameters.items()))
    if is_grid:
        rows = list(itertools.islice(itertools.product(*(one.listed() for one in parameters.values())), file.run_cap))
    else:  # a smaller run_cap gives the beginning of the same draws
        generator = random.Random(seed or 0)
        rows = [
            tuple(one.quantile(generator.random()) for one in parameters.values()) for _ in range(file.run_cap or 0)
        ]
    return Sweep(file.command, file.program, tuple(dict(zip(parameters, row, strict=True)) for row in rows))


def place(x: float, n: int) -> int:
    """Return which of n equal parts of the numbers from 0 to 1 holds x."""
    return max(0, math.ceil(x * n) - 1)


def whole(value: Any) -> Any:
    """Write floats without a fraction as whole numbers, also inside lists and sections, as wandb's server does."""
    if isinstance(value, dict):
        return {key: whole(part) for key, part in value.items()}
    if isinstance(value, list):
        return [whole(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
