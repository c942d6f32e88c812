"""Profile a run: train a few steps of it under torch.profiler in a folder of their own, which is deleted."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

from lab.command import show
from lab.config import Experiment
from lab.errors import ConfigError
from lab.launch import read_launch
from lab.train.callbacks.profiling import STEPS, Profiling
from lab.train.session import run_experiment

SCRATCH = "scratch"  # the run folder of the profiled steps


def profile_experiment(experiment: Experiment, folder: Path | None, command: str) -> int:
    """Write a Chrome trace and a table of where time goes, to RUN/profile if nowhere else; return the exit status.

    No checkpoint is written or read, nothing is probed, and the run itself is left as it is.

    Raises: LabError.
    """
    if experiment.train.steps < STEPS:
        raise ConfigError(
            f"train.tokens={experiment.train.tokens}: --profile trains {STEPS} steps of "
            f"{experiment.train.batch_tokens:,} tokens; raise it"
        )
    folder = folder or experiment.run.path / "profile"
    run = dataclasses.replace(experiment.run, folder=str(folder), name=SCRATCH)
    track = dataclasses.replace(experiment.track, wandb="off", project=None, picture=False)
    profiled = dataclasses.replace(experiment, run=run, track=track)
    is_first = read_launch(os.environ, experiment.train.devices, experiment.train.nodes).is_first
    profiling = Profiling(folder)
    try:
        if is_first:
            shutil.rmtree(run.path, ignore_errors=True)  # of a profile that was killed
        status = run_experiment(profiled, False, command, restart=True, exits=True, profiling=profiling)
    finally:
        if is_first:
            shutil.rmtree(run.path, ignore_errors=True)
            for empty in (folder, experiment.run.path):
                if empty.is_dir() and not any(empty.iterdir()):
                    empty.rmdir()
    if is_first:
        show(f"{profiling.table}\nprofile: {folder / 'profile.txt'}; open {folder / 'trace.json'} in ui.perfetto.dev")
    return status
