"""GPU-hours of a table at full size, by counted operations.

    training      of every run of its sweeps and of shared runs, as `lab.fit CONFIG --dry_run` computes them
    evaluation    one forward pass over every text that is read (`reads`), a third of training's operations per token;
                  the answers' own tokens are left out, a few percent

Both on A100 in bfloat16 at the utilisation of arXiv:2410.18745, A.2 (lab.estimate.cost).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eval.papers.expanding import Sized
from eval.papers.table import needs
from lab.config import Experiment
from lab.estimate.absent import load_without_weights
from lab.estimate.cost import SECONDS_PER_HOUR, cost_of, paper_utilisation
from lab.model.utilisation import PEAK_FLOPS
from lab.settings import Raw, part
from lab.sweep.commands import FitCommand, expand, read_command
from lab.sweep.reading import read_sweep

GPU = "A100"
FORWARD = 1 / 3  # of the operations of training


def gpu_hours(sized: Sized) -> tuple[float, float]:
    """Count the GPU-hours of training and of evaluation."""
    trained = 0.0
    for experiment in experiments(sized):
        cost = cost_of(experiment, peak_flops=PEAK_FLOPS[GPU], utilisation=paper_utilisation())
        trained += (cost.hours or 0) * experiment.train.world_size
    flops = 0.0
    for name, texts in sized.table.reads.items():
        decoder = needs().known[name].decoder
        assert decoder is not None, f"{sized.name}: reads.{name} needs a shape in needs.yaml"
        flops += sum(decoder.flops_per_token_causal(int(n)) * FORWARD * int(n) * count for n, count in texts.items())
    return trained, flops / (PEAK_FLOPS[GPU] * paper_utilisation()) / SECONDS_PER_HOUR


def experiments(sized: Sized) -> Iterator[Experiment]:
    """Read the experiments of a table's sweeps and shared runs, whose models need not be on this machine.

    Raises: ConfigError.
    """
    for file in sized.sweeps:
        sweep = read_sweep(Path(file))
        for settings in sweep.settings:
            yield experiment_of(read_command(expand(sweep.command, sweep.program, settings)))
    for need in sized.needed.values():
        words = (need.train or "").split()
        if words[:1] == ["lab.fit"]:
            yield experiment_of(read_command(["-m", *words]))


def experiment_of(command: FitCommand) -> Experiment:
    """Read the experiment of a command, the architecture of an absent model from needs.yaml.

    Raises: ConfigError.
    """
    raw = Raw(dict(Raw.read(command.config).values), str(command.config))
    raw.override(command.settings)
    start = part(raw.values, "start").get("path")
    decoders = [need.decoder for need in needs().known.values() if need.path == start and need.decoder]
    shape: dict[str, Any] = {f"model.{key}": value for key, value in asdict(decoders[0]).items()} if decoders else {}
    stated = part(raw.values, "model")
    kept = {key: value for key, value in shape.items() if key.partition(".")[2] not in stated and value is not None}
    return load_without_weights(command.config, {**kept, **command.settings, "run.name": "planned"})
