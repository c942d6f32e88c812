"""What a run depends on, before torch is loaded: its folder without another run, packages, shards, disk space, code."""

import platform
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from lab.config import Experiment, TrackConfig, load_experiment
from lab.config.experiment import find_changes
from lab.core.errors import CheckpointError, ConfigError, MissingPackage
from lab.core.plugins import KEPT, hash_plugin
from lab.counts import PositionCounts
from lab.data.config import TokenizerFile
from lab.data.preparation import check_prepared, shard_folder
from lab.data.text_files import read_texts
from lab.data.tokenizer import TOKENIZER, tokenizer_file
from lab.probe import needles
from lab.runs.checkpoints import READ, list_errors
from lab.runs.folder import RunFolder, packed_counts

ROOT = Path(__file__).resolve().parents[2]
RESTART = "start again with --restart, which moves this folder aside and deletes nothing"


def check_preflight(experiment: Experiment, *, resume: bool, restart: bool = False) -> None:
    """Reject before torch is loaded what lab.fit would reject after some seconds."""
    if not restart:
        check_run(experiment, resume=resume)
    for check in list_requirements(experiment, resume=resume and not restart).values():
        check()


def list_requirements(experiment: Experiment, *, resume: bool = True) -> dict[str, Callable[[], object]]:
    """List what a run reads and imports, each with the check that rejects a missing one; no torch."""
    data, probe = experiment.data, experiment.probe
    haystack = None if probe is None else probe.haystack
    needs: dict[str, Callable[[], object]] = {"packages": partial(check_packages, experiment.track)}
    if isinstance(data.tokenizer, TokenizerFile):
        # Prepared shards have their own copy, so that they serve on a machine without the original.
        copied = shard_folder(data) / TOKENIZER
        needs["tokenizer"] = partial(tokenizer_file, copied if copied.exists() else Path(data.tokenizer.path))
    needs["shards"] = partial(check_prepared, data, held_out=probe is not None and probe.needs_held_out(data))
    # A resumed run hides its numbers in the text that it began with.
    if haystack is not None and not (resume and (experiment.run.path / needles.KEPT).exists()):
        needs["haystack"] = partial(read_texts, Path(haystack), "probe.haystack")
    return needs


def check_packages(track: TrackConfig) -> None:
    if track.wandb != "off" and find_spec("wandb") is None:
        raise MissingPackage("wandb", f"track.wandb={track.wandb}", "wandb")


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
        copied = folder.path / KEPT / Path(name).name
        if hash_plugin(copied) != hash_plugin(Path(name)):
            raise ConfigError(
                f"plugins={name}: differs from {copied}, which the run began with; restore it, or {RESTART}"
            )
    # The config is compared only once it is known to be what the run wrote.
    if errors := list_errors(folder.path, READ):
        raise CheckpointError("\n".join(f"{error}, or {RESTART}" for error in errors))
    for key, old, new in find_changes(load_experiment(config).to_dict(), experiment.to_dict()):
        errors.append(f"{key}={new}: the run was started with {old}; set it back, or choose another --run.name")
    if errors:
        raise ConfigError(*errors)
    return True


def checkpoint_bytes(experiment: Experiment) -> int:
    """Count the bytes of a checkpoint: the parameters' states, a row for each stream of packs, and counts.npz."""
    # Of a parameter the weight and AdamW's two moments, float32 each. The state of a stream, int64: packs given, the
    # next sample, and the samples that wait, up to look_ahead of them.
    streams = experiment.train.n_packs * (2 + experiment.data.look_ahead) * 8
    return experiment.model.n_parameters() * 12 + streams + counts_bytes(experiment)


def count_checkpoints(experiment: Experiment) -> int:
    """Count the checkpoints that are on the disk at once: all that a run keeps, and the one being written."""
    train, decays = experiment.train, experiment.optim.decay_tokens is not None
    return min(max(train.keep_checkpoints, len(train.final_steps)) + decays + 1, train.steps)


def room_for_checkpoints(experiment: Experiment, n_saved: int = 0) -> int:
    """Count the bytes that checkpoints still need on the disk, where a resumed run has saved some already."""
    return checkpoint_bytes(experiment) * max(count_checkpoints(experiment) - n_saved, 1)


def counts_bytes(experiment: Experiment) -> int:
    """Count the bytes of counts.npz."""
    return len(packed_counts(PositionCounts(experiment.reach)))


def describe_code() -> dict[str, object]:
    """Describe the code that runs; values that cannot be found are "unknown" or omitted."""
    return {
        "commit": commit(),
        "dirty_diff": git("diff", "HEAD"),
        "versions": {"python": platform.python_version(), **versions()},
    }


def describe_source(model: str, consumed_tokens: int | None, method: str, hardware: str) -> dict[str, object]:
    """Name the model, the code and the hardware that results come from."""
    return {
        "model": model,
        "consumed_tokens": consumed_tokens,
        "commit": commit(),
        "hardware": hardware,
        "method": method,
    }


@cache
def commit() -> str:
    return git("rev-parse", "HEAD") or "unknown"


def git(*arguments: str) -> str:
    """Run git on the repository of the code; empty without git or a repository."""
    try:
        return subprocess.check_output(
            ["git", "-C", ROOT, *arguments], stderr=subprocess.DEVNULL, encoding="utf-8", errors="replace"
        ).strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def versions() -> dict[str, str]:
    """Look up the versions of the packages that affect results."""
    installed = {}
    for package in ("torch", "lightning", "numpy", "tokenizers", "triton", "flash-attn", "flash-attn-3", "xformers"):
        with suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return installed
