"""One run: assemble its model, data, callbacks and Trainer; train, or profile a few steps; print what it found."""

from __future__ import annotations

import logging
import os
import sys
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
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import PassThroughProfiler, Profiler, PyTorchProfiler
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch.profiler import schedule

from lab.command import FAILED, STOPPED, show
from lab.config import Experiment
from lab.data.module import PackedData
from lab.errors import ConfigError, first_line
from lab.files import write_atomic
from lab.launch import Launch, find_launch, read_launch, set_threads
from lab.loading import start_from
from lab.model.decoder import Decoder
from lab.model.sharding import Sharding, accumulating
from lab.probe.limits import shown_length
from lab.train.checkpoints import Checkpoint
from lab.train.environment import choose_backend, choose_compile, computes_in_bf16, training_device
from lab.train.folder import RunFolder, is_finished
from lab.train.module import Training
from lab.train.probing import Probing
from lab.train.recording import Recording, make_logger
from lab.train.saving import Checkpointing, Stopping
from lab.train.shards import NO_GROUP
from lab.train.starting import find_start, own_run, start_folder

DONE = 0
PROFILED, UNPROFILED = 3, 3  # steps; the first ones compile and let the allocator grow
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
    recording: Recording
    stopping: Stopping

    def fit(self) -> None:
        """Train.

        Raises: KeyboardInterrupt where Ctrl-C comes before the first step, for which Lightning raises SystemExit.
        """
        try:
            self.trainer.fit(self.module, datamodule=self.data)
        except SystemExit as error:
            raise (KeyboardInterrupt if isinstance(error.__context__, KeyboardInterrupt) else error) from None


class FullySharded(ModelParallelStrategy):
    """FSDP2, which the module applies to its decoder, on a mesh of all ranks."""

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Run a micro-batch that no step follows; Lightning's own blocks the synchronisation of DDP only."""
        module: Any = self.lightning_module
        with accumulating(module.decoder) if module.sharding.whole else nullcontext():
            yield


def run_experiment(
    experiment: Experiment, resume: bool, command: str, *, restart: bool = False, exits: bool = False
) -> int:
    """Train, record and report, as the only process that writes to the run folder; return the exit status.

    Where the process `exits` afterwards, signals are ignored from the end of the training on. `command` continues the
    run.

    Raises: LabError for what the user can correct.
    """
    train = experiment.train
    launch = find_launch(os.environ, train.devices, train.nodes)
    with own_run(experiment, launch):
        folder = RunFolder(experiment.run.path)
        checkpoint = None if restart else find_start(experiment, folder, resume, launch)
        finished = is_finished(folder, checkpoint, train.steps)
        if not finished or launch.world_size > 1:  # several processes find together that nothing is left to train
            threads = set_threads(train.threads or (folder.threads() if resume else None), launch)
            run = assemble(experiment, folder, launch, start=checkpoint)
            run.data.check_prepared()
            if launch.is_first:
                run.data.prepare_data()
                start_folder(experiment, folder, checkpoint, run.data, threads, restart=restart)
            try:
                run.fit()
                if exits:
                    run.stopping.ignore()
            finally:
                for logger in run.trainer.loggers:
                    logger.finalize("unfinished" if sys.exc_info()[0] or run.stopping.stopped else "finished")
            if run.stopping.stopped:
                if launch.is_first:
                    saved = f"stopped after {run.module.consumed:,} tokens, all saved; continue with:\n  {command}"
                    show(run.stopping.fault or saved, error=True)
                run.trainer.strategy.barrier()  # torchrun ends the processes that are left once one has exited
                return FAILED if run.stopping.fault else STOPPED
        if launch.is_first:
            if finished:
                show(f"{folder.path}: already finished; choose another --run.name to train again")
            show(report(folder))
    return DONE


def profile_experiment(experiment: Experiment, folder: Path | None) -> int:
    """Write a Chrome trace and a table of where time goes, to RUN/profile if nowhere else; return the exit status.

    A few steps are trained, of which nothing else is written. Of several processes the first is profiled.

    Raises: LabError.
    """
    train, path = experiment.train, folder or experiment.run.path / "profile"
    launch = find_launch(os.environ, train.devices, train.nodes)

    def write(found: Any) -> None:
        path.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(path / "trace.json"))

    packs = train.accumulation  # the profiler counts these
    begin = schedule(wait=(UNPROFILED - 1) * packs, warmup=packs, active=PROFILED * packs)
    profiler = PyTorchProfiler(schedule=begin, on_trace_ready=write, row_limit=25)
    set_threads(train.threads, launch)
    run = assemble(
        experiment,
        RunFolder(experiment.run.path),
        launch,
        profiler=profiler if launch.is_first else PassThroughProfiler(),
    )
    run.data.check_prepared()
    run.trainer.fit_loop.epoch_loop.max_steps = PROFILED + UNPROFILED
    run.fit()
    if launch.is_first:
        write_atomic(path / "profile.txt", profiler.summary().encode())
        show(f"profile: {path / 'profile.txt'}; open {path / 'trace.json'} in ui.perfetto.dev")
    return DONE


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
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in HINTS:
        warnings.filterwarnings("ignore", message=message)
    launch = launch or read_launch(os.environ)
    train, device = experiment.train, training_device(experiment)
    on_gpu = device.type == "cuda"
    strategy = train.resolved_strategy(on_gpu)
    kept = profiler is None and experiment.reads_token_types  # the run folder keeps what selects sentences
    data = PackedData(experiment, folder.token_types if kept else None)
    recording, stopping = Recording(experiment, folder), Stopping(launch)
    saving = Checkpointing(experiment, folder, recording, stopping, start)
    probing = Probing(experiment, folder, recording, stopping, saving)
    callbacks: list[Callback] = [recording, stopping, saving, probing] if profiler is None else []
    autocast = computes_in_bf16(experiment, device) and strategy != "fsdp"
    try:
        trainer = lightning.Trainer(
            accelerator="gpu" if on_gpu or train.accelerator == "gpu" else "cpu",
            devices=train.devices,
            num_nodes=train.nodes,
            strategy=make_strategy(strategy, train.world_size, device),
            precision="bf16-mixed" if autocast else "32-true",
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
    except MisconfigurationException as error:
        raise ConfigError(
            f"train.accelerator={train.accelerator}, train.devices={train.devices}: {first_line(error)}; use the "
            "devices of this machine"
        ) from error
    return Run(trainer, make_module(experiment, device, trained=start is not None), data, recording, stopping)


def make_module(experiment: Experiment, device: torch.device, *, trained: bool) -> Training:
    """Build the training of a model, which starts from other weights unless it has been `trained`."""
    train, bf16 = experiment.train, computes_in_bf16(experiment, device)
    compiles, _ = choose_compile(experiment, device)
    start = None
    if experiment.start is not None and not trained:
        start = partial(start_from, path=Path(experiment.start.path))
    with torch.device("cpu"):  # the table is here, whatever the default device or that of the weights
        own = experiment.frequencies
    make = partial(
        Decoder,
        experiment.model,
        frequencies=own,
        distance=experiment.position.distance,
        backend=choose_backend(experiment, device)[0],
        recompute=train.recompute,
        compiler="inductor" if compiles else None,
    )
    whole = train.keeps_whole(experiment.model.n_parameters(), bf16=bf16)
    sharding = Sharding(torch.bfloat16 if bf16 else None, train.sharded_over, whole=whole)
    seed = experiment.run.seed
    return Training(
        lambda seed: make(seed=seed),
        experiment.optim,
        train,
        seed=seed,
        sharding=sharding,
        compiles=compiles,
        start=start,
    )


def make_strategy(strategy: str, world_size: int, device: torch.device) -> Strategy | str:
    """Build Lightning's strategy, with gloo between processes on CPUs."""
    group = "nccl" if device.type == "cuda" else "gloo"
    if strategy == "fsdp":
        return FullySharded(data_parallel_size=world_size, tensor_parallel_size=1, process_group_backend=group)
    return DDPStrategy(process_group_backend=group, gradient_as_bucket_view=True) if strategy == "ddp" else "auto"


def report(folder: RunFolder) -> str:
    """Format the results: effective length by consumed tokens, and the run folder."""
    lines = ["", f"{'consumed tokens':>16} {'effective length':>17} {'f(effective length)':>20} {'held-out loss':>14}"]
    for probe in folder.probes():
        loss = probe.get("held_out_loss")
        length, f = probe["effective_length"], probe.get("f_at_effective_length")
        frequency = "-" if not length or f is None else f"{f:,}"
        lines.append(
            f"{probe['consumed_tokens']:>16,} {shown_length(length, probe.get('first_length')):>17} {frequency:>20} "
            f"{'' if loss is None else format(loss, '.3f'):>14}"
        )
    return "\n".join([*lines, f"\neverything is in {folder.path}"])
