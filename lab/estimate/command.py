"""The command lines `python -m lab.fit CONFIG --dry_run` and `python -m lab.longrecipe RECIPE --dry_run`."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.config import Experiment
from lab.errors import ConfigError, LabError
from lab.estimate.absent import load_without_weights, shape_of, tokenizer_of
from lab.estimate.cost import cost_of, paper_utilisation
from lab.estimate.memory import computes_in_bf16, memory_of
from lab.estimate.report import Gpus, refuse_too_large, report
from lab.inheritance import Source, part, read_source
from lab.model.utilisation import PEAK_FLOPS
from lab.recipes.recipe import Recipe, read_recipe, resolve_training
from lab.settings import parse_overrides

FLAG = "--dry_run"
OTHERS = ("--resume", "--print_config", "--launcher")
OPTIONS = ("memory_gib", "utilisation", "gpu")
GPU = "A100"
WRONG = 2


def dry_run(arguments: Sequence[str]) -> str:
    """Lay out what a run would take.

    Raises: LabError for a wrong command line or config, and for a run that does not fit.
    """
    path, overrides, options = parse(arguments)
    return estimate(load_without_weights(path, overrides), options)


def dry_run_of_recipe(arguments: Sequence[str]) -> str:
    """Lay out what each training stage of a recipe would take.

    Raises: LabError, a line for each stage that does not fit.
    """
    path, overrides, options = parse(arguments)
    recipe = read_recipe(path, overrides)
    if Path(recipe.base).is_dir():
        source = read_source(Path(recipe.base))
    else:
        recipe, source = with_shape(recipe)
    experiments, faults = resolve_training(recipe, source)
    if faults:
        raise ConfigError(*faults)
    parts = []
    for stage, experiment in experiments.items():
        try:
            parts.append(estimate(experiment, options))
        except ConfigError as error:
            faults += [f"{stage}.{fault}" for fault in error.faults]
    if faults:
        raise ConfigError(*faults)
    return "\n\n\n".join(parts)


def print_dry_run(arguments: Sequence[str], lay_out: Callable[[Sequence[str]], str]) -> int:
    """Print what a run would take, or why it cannot be; return the exit status."""
    try:
        print(lay_out(arguments))
    except LabError as error:
        print(error, file=sys.stderr)
        return WRONG
    return 0


def with_shape(recipe: Recipe) -> tuple[Recipe, Source]:
    """Give a recipe whose base is absent the shape that `common.model` states, in every stage.

    Raises: ConfigError.
    """
    shape = shape_of(part(recipe.common, "model"), "common.model", recipe.base)
    position = {"frequency": {"method": "rope"}, **part(recipe.common, "position")}
    common = {**recipe.common, "model": shape, "position": position}
    return dataclasses.replace(recipe, common=common), Source(shape, position, tokenizer_of(recipe.base), None)


def estimate(experiment: Experiment, options: dict[str, Any]) -> str:
    """Lay out one run.

    Raises: ConfigError for one that does not fit.
    """
    gpus = gpus_of(options, computes_in_bf16(experiment))
    memory = memory_of(experiment)
    refuse_too_large(experiment, memory, gpus)
    cost = cost_of(experiment, peak_flops=gpus.peak_flops, utilisation=gpus.utilisation)
    return report(experiment, memory, cost, gpus)


def parse(arguments: Sequence[str]) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Read the command line: the config, its overrides, and the options of a dry run.

    Raises: ConfigError.
    """
    words = [word for word in arguments if word != FLAG]
    if not words or words[0].startswith("--"):
        raise ConfigError("CONFIG: must be the first argument, a YAML file; for instance configs/tiny_2k.yaml")
    for word in words:
        if word.partition("=")[0] in OTHERS:
            raise ConfigError(f"{word}: would be ignored, {FLAG} starts nothing; leave it out")
    overrides = parse_overrides(words[1:])
    options = {name: overrides.pop(name) for name in OPTIONS if name in overrides}
    check(options)
    return Path(words[0]), overrides, options


def check(options: dict[str, Any]) -> None:
    """Refuse values that mean nothing.

    Raises: ConfigError with one line for each.
    """
    faults = []
    for name, highest in (("memory_gib", math.inf), ("utilisation", 1.0)):
        value = options.get(name, 1)
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not 0 < value <= highest:
            above = f" and <= {highest:g}" if highest < math.inf else ""
            faults.append(f"--{name}={value}: must be a number > 0{above}; leave it out for the default")
    if str(options.get("gpu", GPU)) not in PEAK_FLOPS:
        faults.append(f"--gpu={options['gpu']}: its peak is not known; use one of: {', '.join(PEAK_FLOPS)}")
    if faults:
        raise ConfigError(*faults)


def gpus_of(options: dict[str, Any], bf16: bool) -> Gpus:
    """Resolve the options; the table of peaks is that of bfloat16."""
    name = options.get("gpu", GPU)
    own = "utilisation" in options
    return Gpus(
        name=name,
        peak_flops=PEAK_FLOPS[name] if bf16 else None,
        memory_gib=options.get("memory_gib"),
        utilisation=options["utilisation"] if own else paper_utilisation(),
        utilisation_source="given" if own else "arXiv:2410.18745, A.2: 28 days for 1T tokens on 16 A100",
    )
