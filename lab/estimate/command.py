"""Estimate resources: of one run for `lab.fit --dry_run`, of each training stage for `lab.longrecipe --dry_run`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from lab.command import Words, run
from lab.config import Experiment
from lab.errors import ConfigError
from lab.estimate.absent import architecture_of, tokenizer_of
from lab.estimate.cost import cost_of, paper_utilisation
from lab.estimate.memory import memory_of
from lab.estimate.options import DryRun, separate
from lab.estimate.report import Gpus, refuse_too_large, report
from lab.model.utilisation import PEAK_FLOPS
from lab.recipes import SYNTAX, Recipe, read_recipe, resolve_training
from lab.settings import part
from lab.source import Source, read_source


def estimate(experiment: Experiment, options: DryRun) -> str:
    """Estimate one run's resources and format them.

    Raises: ConfigError for a run that does not fit.
    """
    train = experiment.train
    gpus = gpus_of(options, train.computes_in_bf16(train.accelerator != "cpu"))
    memory = memory_of(experiment)
    refuse_too_large(experiment, memory, gpus)
    cost = cost_of(experiment, peak_flops=gpus.peak_flops, utilisation=gpus.utilisation)
    return report(experiment, memory, cost, gpus)


def estimate_recipe(words: Words) -> str:
    """Estimate the resources of each training stage of a recipe and format them.

    Raises: LabError, a line for each stage that does not fit.
    """
    settings, options = separate(words)
    recipe = read_recipe(Path(words.places[0]), settings)
    if Path(recipe.base).is_dir():
        source = read_source(Path(recipe.base))
    else:
        recipe, source = with_architecture(recipe)
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


def with_architecture(recipe: Recipe) -> tuple[Recipe, Source]:
    """Add the architecture that `common.model` states to every stage of a recipe whose base is absent.

    Raises: ConfigError.
    """
    model = architecture_of(part(recipe.common, "model"), "common.model", recipe.base)
    position = {"frequency": {"method": "rope"}, **part(recipe.common, "position")}
    common = {**recipe.common, "model": model, "position": position}
    return dataclasses.replace(recipe, common=common), Source(model, position, tokenizer_of(recipe.base), None)


def gpus_of(options: DryRun, bf16: bool) -> Gpus:
    """Resolve the options; the table of peaks is for bfloat16."""
    own = options.utilisation
    return Gpus(
        name=options.gpu,
        peak_flops=PEAK_FLOPS[options.gpu] if bf16 else None,
        memory_gib=options.memory_gib,
        utilisation=paper_utilisation() if own is None else own,
        utilisation_source="arXiv:2410.18745, A.2: 28 days for 1T tokens on 16 A100" if own is None else "given",
    )


def main(arguments: Sequence[str]) -> int:
    """Run `lab.longrecipe --dry_run` and return the exit status."""
    return run(None, arguments, estimate_recipe, syntax=SYNTAX._replace(flags=("--dry_run",)))
