"""Assemble a run from its experiment: model, data, callbacks, strategy, Trainer."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch

from lab.config import Experiment
from lab.data.module import PackedData
from lab.data.preparation import end_of_document, shard_folder
from lab.data.tokenizer import load_tokenizer
from lab.errors import MissingPackage
from lab.launch import Launch, read_launch
from lab.loading import start_from
from lab.model.sharding import Sharding
from lab.model.training import Training
from lab.probe.effective_length import NeedleProbe
from lab.probe.haystacks import KEPT, load_haystack, read_text
from lab.probe.measuring import HeldOutLoss, Measuring
from lab.train.callbacks.checkpointing import Checkpointing, Saves
from lab.train.callbacks.counting import Counting
from lab.train.callbacks.dashboard import Dashboard
from lab.train.callbacks.probing import Probing
from lab.train.callbacks.progress import Progress
from lab.train.callbacks.recording import Recording
from lab.train.callbacks.stopping import Stopping
from lab.train.checkpoints import Checkpoint, folder_name
from lab.train.choices import (
    choose_backend,
    choose_compile,
    computes_in_bf16,
    method_name,
    refuse_too_large,
    training_device,
)
from lab.train.environment import commit, processor
from lab.train.folder import RunFolder
from lab.train.processes import cluster_environment, make_strategy
from lab.train.shards import NO_GROUP

QUIET = ("lightning.pytorch", "lightning.fabric")


@dataclass(frozen=True)
class Run:
    """The parts of one run that outlive its assembly."""

    trainer: lightning.Trainer
    module: Training
    data: PackedData
    counting: Counting
    stopping: Stopping


def assemble(
    experiment: Experiment, folder: RunFolder, launch: Launch | None = None, *, start: Checkpoint | None = None
) -> Run:
    """Build everything a run needs, without training; training resumes from the checkpoint `start` if given.

    `launch` describes this process; left out, it is read from the environment.

    Raises: LabError if this machine cannot run it.
    """
    quiet()
    launch = launch or read_launch(os.environ, experiment.train.devices, experiment.train.nodes)
    train, data = experiment.train, experiment.data
    device = training_device(experiment)
    refuse_too_large(experiment, device)
    bf16 = computes_in_bf16(experiment, device)
    strategy = train.resolved_strategy(device.type == "cuda")
    sharded = strategy == "fsdp"
    backend, _ = choose_backend(experiment, device)
    trained = partial(start_from, path=Path(experiment.start.path)) if experiment.start and start is None else None
    with torch.device("cpu"):  # tables too, whatever the default device
        module = Training(
            experiment.model,
            experiment.optim,
            frequencies=experiment.frequencies,
            distance=experiment.position.distance,
            backend=backend,
            seed=experiment.run.seed,
            total_steps=train.steps,
            batch_tokens=train.batch_tokens,
            micro_batch_tokens=train.micro_batch_tokens,
            sharding=Sharding(
                torch.bfloat16 if bf16 else None,
                train.sharded_over,
                whole=train.keeps_whole(experiment.model.n_parameters(), bf16=bf16),
            ),
            recompute=train.recompute,
            compiler="inductor" if choose_compile(experiment, device)[0] else None,
            context_parallel=train.context_parallel,
            start=trained,
        )
    packed = PackedData(experiment, folder.token_types if experiment.reads_token_types else None)
    selects = experiment.skip is not None and experiment.skip.selects
    counting = Counting(experiment.reach, experiment.position.distance, selects=selects, copies=train.context_parallel)
    stopping = Stopping()
    recording = Recording(
        folder, counting, experiment.model, data.window, experiment.logged_positions, experiment.track.every_steps
    )
    probing = make_probing(experiment, folder, counting, recording, stopping, sharded=sharded)
    progress = Progress(recording, probing, train.steps * train.batch_tokens)
    saves = Saves(train.checkpoint_every_tokens, train.keep_checkpoints, train.async_checkpoints, train.final_steps)
    saving = Checkpointing(folder, counting, stopping, recording, probing, saves, start)
    trainer = lightning.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=train.devices,
        num_nodes=train.nodes,
        strategy=make_strategy(strategy, train.world_size, device),
        precision="bf16-mixed" if bf16 and not sharded else "32-true",
        max_steps=train.steps,
        max_epochs=-1,
        accumulate_grad_batches=train.accumulation,
        callbacks=[counting, recording, progress, stopping, saving, probing],
        logger=make_logger(experiment),
        plugins=[cluster_environment(launch)],
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    return Run(trainer, module, packed, counting, stopping)


def quiet() -> None:
    """Hide the libraries' hints about settings that the lab chooses."""
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (".*does not have many workers.*", ".*isinstance.treespec.*", ".*log_every_n_steps.*"):
        warnings.filterwarnings("ignore", message=message)
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*before.*optimizer.step.*")
    warnings.filterwarnings("ignore", message=NO_GROUP)


def make_probing(
    experiment: Experiment,
    folder: RunFolder,
    counting: Counting,
    recording: Recording,
    stopping: Stopping,
    *,
    sharded: bool,
) -> Probing:
    """Build the probing callback; its tests and held-out text are read when training starts."""
    probe = experiment.probe
    if probe.haystack is not None and not (folder.path / KEPT).is_file():
        read_text(Path(probe.haystack))  # a missing one is found before training, not by the first probe

    def make(rank: int, world_size: int, device: torch.device) -> Measuring:
        about = partial(describe_probed, experiment, folder.path.name)
        loss = make_held_out(experiment, rank, world_size, device)
        return Measuring(make_needle_probe(experiment, device), loss, about)

    return Probing(
        folder,
        counting,
        recording,
        stopping,
        make=make,
        every_tokens=probe.every_tokens,
        max_seconds=probe.max_seconds,
        sharded=sharded,
        separate=probe.process == "separate",
    )


def make_held_out(experiment: Experiment, rank: int, world_size: int, device: torch.device) -> HeldOutLoss | None:
    """Build a rank's part of the held-out loss; None where none is asked for."""
    if not experiment.probe.loss_tokens:
        return None
    return HeldOutLoss(
        experiment.data,
        tokens=experiment.probe.loss_tokens,
        pack_tokens=experiment.train.micro_batch_tokens,
        rank=rank,
        world_size=world_size,
        device=device,
    )


def describe_probed(experiment: Experiment, name: str, device: torch.device, consumed_tokens: int) -> dict[str, Any]:
    """Describe the model that a probe during training measures; `weights` have no hash before they are saved."""
    return {
        "model": name,
        "consumed_tokens": consumed_tokens,
        "commit": commit(),
        "hardware": processor(device),
        "method": method_name(experiment),
        "checkpoint": folder_name(consumed_tokens),
        "weights": None,
        "precision": "bfloat16" if computes_in_bf16(experiment, device) else "float32",
    }


def make_needle_probe(experiment: Experiment, device: torch.device) -> NeedleProbe:
    """Build the probe of a config on its corpus's tokenizer and haystack."""
    data = experiment.data
    tokenizer = load_tokenizer(shard_folder(data))
    path = experiment.probe.haystack
    probe = NeedleProbe(
        experiment.probe,
        tokenizer,
        load_haystack(path, data, tokenizer, experiment.run.path),
        window=data.window,
        stop_id=end_of_document(data, tokenizer),
        device=device,
        source=None if path is None else f"probe.haystack={path}",
    )
    probe.check_haystack(probe.lengths[-1])
    return probe


def make_logger(experiment: Experiment) -> Any:
    """Build the dashboard's logger; False for none.

    Raises: MissingPackage.
    """
    track = experiment.track
    if track.wandb == "off":
        return False
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # the end would wait for a server that stalls
    try:
        import wandb  # noqa: F401  the logger below would only fail in the middle of the run
    except ModuleNotFoundError as error:
        raise MissingPackage("wandb", f"track.wandb={track.wandb}", "wandb") from error
    return Dashboard(
        mode=track.wandb,
        project=track.project or "probe-lab",
        name=experiment.run.name,
        save_dir=str(experiment.run.path),
        config=experiment.to_dict(),
    )
