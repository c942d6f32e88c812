"""Assemble a run from its experiment: model, data, callbacks, strategy, Trainer."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

from lab.config import Experiment
from lab.data.module import PackedData
from lab.errors import MissingPackage
from lab.launch import Launch, read_launch
from lab.loading import start_from
from lab.model.decoder import Decoder
from lab.model.sharding import Sharding, accumulating
from lab.train.callbacks.checkpointing import Checkpointing
from lab.train.callbacks.counting import Counting
from lab.train.callbacks.probing import Probing
from lab.train.callbacks.recording import Recording
from lab.train.callbacks.showing import Dashboard, Progress
from lab.train.callbacks.stopping import Stopping
from lab.train.checkpoints import Checkpoint
from lab.train.choices import choose_backend, choose_compile, computes_in_bf16, training_device
from lab.train.folder import RunFolder
from lab.train.module import Training
from lab.train.shards import NO_GROUP

HINTS = (  # of libraries, about settings that the lab chooses
    ".*does not have many workers.*",
    ".*isinstance.treespec.*",
    ".*log_every_n_steps.*",
    ".*lr_scheduler.step.*before.*optimizer.step.*",
    NO_GROUP,
)


@dataclass(frozen=True)
class Run:
    """The parts of one run that outlive its assembly."""

    trainer: lightning.Trainer
    module: Training
    data: PackedData
    counting: Counting
    stopping: Stopping


class FullySharded(ModelParallelStrategy):
    """FSDP2, which the module applies to its decoder, on a mesh of all ranks."""

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Run a micro-batch that no step follows; Lightning's own blocks the synchronisation of DDP only."""
        module: Any = self.lightning_module
        with accumulating(module.decoder) if module.sharding.whole else nullcontext():
            yield


def assemble(
    experiment: Experiment,
    folder: RunFolder,
    launch: Launch | None = None,
    *,
    start: Checkpoint | None = None,
    profiler: Profiler | None = None,
) -> Run:
    """Build everything a run needs, without training; training resumes from the checkpoint `start` if given.

    `launch` describes this process; left out, it is read from the environment. A run with a `profiler` writes nothing,
    and a signal ends it at once.

    Raises: LabError if this machine cannot run it.
    """
    quiet()
    launch = launch or read_launch(os.environ)
    train, device = experiment.train, training_device(experiment)
    bf16, strategy = computes_in_bf16(experiment, device), train.resolved_strategy(device.type == "cuda")
    kept = profiler is None and experiment.reads_token_types  # the run folder keeps what selects sentences
    data = PackedData(experiment, folder.token_types if kept else None)
    selects = experiment.skip is not None and experiment.skip.selects
    counting = Counting(experiment.reach, experiment.position.distance, selects=selects, copies=train.context_parallel)
    stopping, recording = Stopping(launch), Recording(experiment, folder, counting)
    callbacks: list[Callback] = [counting]
    if profiler is None:
        probing = Probing(experiment, folder, counting, recording, stopping)
        saving = Checkpointing(experiment, folder, counting, recording, stopping, probing, start)
        callbacks += [recording, Progress(experiment, recording, probing), stopping, saving, probing]
    trainer = lightning.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=train.devices,
        num_nodes=train.nodes,
        strategy=make_strategy(strategy, train.world_size, device),
        precision="bf16-mixed" if bf16 and strategy != "fsdp" else "32-true",
        max_steps=train.steps,
        max_epochs=-1,
        accumulate_grad_batches=train.accumulation,
        callbacks=callbacks,
        logger=make_logger(experiment) if profiler is None else False,
        profiler=profiler,
        plugins=[TorchElasticEnvironment() if launch.by_torchrun else LightningEnvironment()],
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    return Run(trainer, make_module(experiment, device, trained=start is not None), data, counting, stopping)


def make_module(experiment: Experiment, device: torch.device, *, trained: bool) -> Training:
    """Build the training of a model, which starts from other weights unless it has been `trained`."""
    train, bf16 = experiment.train, computes_in_bf16(experiment, device)
    backend, _ = choose_backend(experiment, device)
    compiles, _ = choose_compile(experiment, device)
    start = None
    if experiment.start is not None and not trained:
        start = partial(start_from, path=Path(experiment.start.path))

    with torch.device("cpu"):  # the table is here, whatever the default device or that of the weights
        frequencies = experiment.frequencies

    def make(seed: int | None) -> Decoder:
        return Decoder(
            experiment.model,
            frequencies=frequencies,
            distance=experiment.position.distance,
            seed=seed,
            backend=backend,
            recompute=train.recompute,
            compiler="inductor" if compiles else None,
        )

    whole = train.keeps_whole(experiment.model.n_parameters(), bf16=bf16)
    return Training(
        make,
        experiment.optim,
        train,
        seed=experiment.run.seed,
        sharding=Sharding(torch.bfloat16 if bf16 else None, train.sharded_over, whole=whole),
        compiles=compiles,
        start=start,
    )


def make_strategy(strategy: str, world_size: int, device: torch.device) -> Strategy | str:
    """Build Lightning's strategy, with gloo between processes on CPUs."""
    group = "nccl" if device.type == "cuda" else "gloo"
    if strategy == "fsdp":
        return FullySharded(data_parallel_size=world_size, tensor_parallel_size=1, process_group_backend=group)
    return DDPStrategy(process_group_backend=group, gradient_as_bucket_view=True) if strategy == "ddp" else "auto"


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
        project="probe-lab",
        name=experiment.run.name,
        save_dir=str(experiment.run.path),
        config=experiment.to_dict(),
    )


def quiet() -> None:
    """Hide the libraries' hints about settings that the lab chooses."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in HINTS:
        warnings.filterwarnings("ignore", message=message)
