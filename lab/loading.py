"""Opens a trained model: a run folder, or a checkpoint in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lab.assembly import make_distance, make_frequencies
from lab.config import Experiment, load_experiment
from lab.errors import CheckpointError
from lab.model.decoder import Decoder
from lab.runs.checkpoints import Checkpoint, open_checkpoint

PREFIX = "decoder."


@dataclass(frozen=True)
class Trained:
    """A model with the experiment it came from."""

    decoder: Decoder
    experiment: Experiment
    checkpoint: Checkpoint
    folder: Path


def load_trained(
    path: Path, overrides: dict[str, Any] | None = None, *, device: torch.device | str = "cpu", backend: str = "auto"
) -> Trained:
    """Load the weights of a run folder's newest checkpoint, or of the checkpoint given.

    `overrides` are dotted settings of the run's own config, for instance of its probe.

    Raises: CheckpointError for a folder that is neither, ConfigError for a wrong override.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder; give a run folder or a checkpoint in it")
    checkpoint = open_checkpoint(path)
    folder = checkpoint.folder.parent.parent
    experiment = load_experiment(folder / "config.yaml", overrides)
    decoder = Decoder(
        experiment.model,
        frequencies=make_frequencies(experiment),
        distance=make_distance(experiment),
        backend=backend,
        seed=experiment.run.seed,
    )
    state = torch.load(checkpoint.state, map_location="cpu", weights_only=True, mmap=True)["state_dict"]
    decoder.load_state_dict({name.removeprefix(PREFIX): tensor for name, tensor in state.items()})
    return Trained(decoder.to(device).eval(), experiment, checkpoint, folder)
