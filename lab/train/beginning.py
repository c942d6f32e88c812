"""What refuses a run before anything heavy is loaded: another run in its folder, missing packages and shards."""

from __future__ import annotations

import os
from pathlib import Path

from lab.config import Experiment, load_experiment
from lab.data.preparation import check_prepared
from lab.errors import CheckpointError, ConfigError
from lab.schema.plugins import KEPT, digest_of
from lab.train.arms import changes
from lab.train.dashboards import check_packages
from lab.train.folder import RunFolder
from lab.train.manifest import READ, RECORDS, faults_of

RESTART = "begin anew with --restart, which moves this folder aside and deletes nothing"


def check_beginning(experiment: Experiment, *, resume: bool, restart: bool = False) -> None:
    """Refuse what lab.fit would refuse after some seconds."""
    path = experiment.run.path
    place = next(folder for folder in [path, *path.absolute().parents] if folder.exists())
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise ConfigError(f"run.folder={experiment.run.folder}: {place} is no folder to write in; name another folder")
    if not restart:
        check_run(experiment, resume=resume)
    check_packages(experiment.track)
    check_prepared(experiment.data)


def check_run(experiment: Experiment, *, resume: bool) -> bool:
    """Return whether the run folder holds a run, which may continue with these settings.

    Raises: CheckpointError if a run of that name exists and `resume` is not set, or nothing tells its settings;
        ConfigError if they differ.
    """
    folder = RunFolder(experiment.run.path)
    if not folder.holds_records():
        return False  # a new run, or one that ended before it trained
    if not resume:
        raise CheckpointError(
            f"run.name={experiment.run.name}: {folder.path} already holds a run; continue with --resume, {RESTART}, or "
            "choose another --run.name"
        )
    config = folder.path / "config.yaml"
    if not config.is_file():
        raise CheckpointError(f"{config}: is missing, and nothing tells what was trained; restore it, or {RESTART}")
    for name in experiment.plugins:
        kept = folder.path / KEPT / Path(name).name
        if digest_of(kept) != digest_of(Path(name)):
            raise ConfigError(
                f"plugins={name}: differs from {kept}, which the run began with; restore it, or {RESTART}"
            )
    if faults := faults_of(folder.path, hashes=False) or faults_of(folder.path, (*READ, *RECORDS)):
        raise CheckpointError("\n".join(f"{fault}, or {RESTART}" for fault in faults))
    differ = changes(load_experiment(config).to_dict(), experiment.to_dict())
    remedy = "set it back, or choose another --run.name"
    if faults := [f"{key}={new}: the run was started with {old}; {remedy}" for key, old, new in differ]:
        raise ConfigError(*faults)
    return True
