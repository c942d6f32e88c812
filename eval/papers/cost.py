"""GPU-hours of a table at full size, by counted operations.

    training      of every run of its sweeps and of shared runs, as `lab.fit CONFIG --dry_run` computes them
    evaluation    one forward pass over every text that is read (`reads`), a third of training's operations per token;
                  the answers' own tokens are left out, a few percent

Both on A100 in bfloat16 at the utilisation of arXiv:2410.18745, A.2 (lab.estimate.cost).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from eval.papers.expanding import Sized
from eval.papers.table import needs
from lab.config import Experiment
from lab.errors import ConfigError
from lab.estimate.absent import load_without_weights
from lab.estimate.command import with_architecture
from lab.estimate.cost import SECONDS_PER_HOUR, cost_of, paper_utilisation
from lab.model.utilisation import PEAK_FLOPS
from lab.recipes import read_recipe, resolve_training
from lab.settings import Raw, parse_overrides, part
from lab.source import read_source
from lab.sweep.planning import FitCommand, expand, read_command
from lab.sweep.reading import read_sweep

GPU = "A100"
FORWARD = 1 / 3  # of the operations of training


def gpu_hours(sized: Sized) -> tuple[float, float]:
    """Count the GPU-hours of training and of evaluation."""
    trained = sum(hours_of(what) for what in trainings(sized))
    flops = 0.0
    for name, texts in sized.table.reads.items():
        decoder = needs().known[name].decoder
        assert decoder is not None, f"{sized.name}: reads.{name} needs a shape in needs.yaml"
        flops += sum(decoder.flops_per_token_causal(int(n)) * FORWARD * int(n) * count for n, count in texts.items())
    return trained, flops / (PEAK_FLOPS[GPU] * paper_utilisation()) / SECONDS_PER_HOUR


def trainings(sized: Sized) -> list[str]:
    """List the sweep files and training commands of a table."""
    return [*sized.sweeps, *(need.train for need in sized.needed.values() if need.train)]


@cache
def hours_of(what: str) -> float:
    """Count the GPU-hours of a sweep file or a training command."""
    costs = [
        (cost_of(one, peak_flops=PEAK_FLOPS[GPU], utilisation=paper_utilisation()), one.train.world_size)
        for one in experiments(what)
    ]
    return sum((cost.hours or 0) * gpus for cost, gpus in costs)


@cache
def experiments(what: str) -> tuple[Experiment, ...]:
    """Read the experiments of a sweep file or a training command, whose models need not be on this machine.

    Raises: ConfigError.
    """
    words = what.split()
    if words[0] == "lab.longrecipe":
        return tuple(stages_of(words[1], words[2:]))
    if words[0] == "lab.fit":
        return (experiment_of(read_command(["-m", *words])),)
    sweep = read_sweep(Path(what))
    commands = (expand(sweep.command, sweep.program, settings) for settings in sweep.settings)
    return tuple(experiment_of(read_command(command)) for command in commands)


def stages_of(file: str, settings: Sequence[str]) -> Iterator[Experiment]:
    """Read the training stages of a recipe.

    Raises: ConfigError.
    """
    recipe = read_recipe(Path(file), parse_overrides(settings))
    if Path(recipe.base).is_dir():
        source = read_source(Path(recipe.base))
    else:
        shape = {f"common.model.{key}": value for key, value in shape_of(recipe.base).items()}
        recipe, source = with_architecture(read_recipe(Path(file), {**shape, **parse_overrides(settings)}))
    experiments, faults = resolve_training(recipe, source)
    if faults:
        raise ConfigError(*faults)
    yield from experiments.values()


def shape_of(path: str | None) -> dict[str, Any]:
    """Return the architecture of an absent model, nothing of one that needs.yaml does not know."""
    decoders = [need.decoder for need in needs().known.values() if need.path == path and need.decoder]
    return {key: value for key, value in asdict(decoders[0]).items() if value is not None} if decoders else {}


def experiment_of(command: FitCommand) -> Experiment:
    """Read the experiment of a command, the architecture of an absent model from needs.yaml.

    Raises: ConfigError.
    """
    raw = Raw(dict(Raw.read(command.config).values), str(command.config))
    raw.override(command.settings)
    start = part(raw.values, "start").get("path")
    stated = part(raw.values, "model")
    kept = {f"model.{key}": value for key, value in shape_of(start).items() if key not in stated}
    return load_without_weights(command.config, {**kept, **command.settings, "run.name": "planned"})
