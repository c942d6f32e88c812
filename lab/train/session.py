"""One run: assemble its model, data, callbacks and Trainer; train, or profile a few steps; print what it found."""

import logging
import os
import sys
import threading
import warnings
from collections import deque
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
from lightning.pytorch.profilers import Profiler, PyTorchProfiler
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

from lab.command import FAILED, STOPPED, show
from lab.config import Experiment
from lab.data.module import PackedData
from lab.data.preparation import check_prepared
from lab.errors import ConfigError, first_line
from lab.launch import TIMEOUT, find_launch, set_threads
from lab.loading import decoder_of, start_from
from lab.meeting import LAST, gather
from lab.model.attention.backends import choose_for
from lab.model.devices import choose_compile, device_for
from lab.model.sharding import Sharding, accumulating
from lab.probe.effective_distance import build_distance_probe
from lab.probe.limits import shown_length
from lab.runs.folder import RunFolder
from lab.runs.recovery import is_finished
from lab.runs.shards import NO_GROUP
from lab.train.agreement import check_data, check_shared
from lab.train.probing import Probing, check_tests, make_needle_probe
from lab.train.recording import Recording
from lab.train.saving import Checkpointing, Stopping
from lab.train.starting import Start, find_start, own_run, start_folder
from lab.train.step import Training

HINTS = (".*isinstance.treespec.*", NO_GROUP)  # of libraries, about what the lab cannot or need not change


@dataclass(frozen=True)
class Assembled:
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
    experiment: Experiment, resume: bool, command: str, *, restart: bool = False, begun: threading.Event | None = None
) -> int:
    """Train, record and report, as the only process that writes to the run folder; return the exit status.

    A process that exits afterwards passes `begun`, which is set after the first step; it ignores signals from the end
    of the training on. `command` continues the run.

    Raises: LabError for what the user can correct.
    """
    train = experiment.train
    probes = experiment.probe is not None
    launch = find_launch(os.environ, train.devices, train.nodes)
    with own_run(experiment) if launch.is_first else nullcontext():
        check_shared(experiment, launch)
        start = Start(experiment, launch, None if restart else find_start(experiment, launch, resume=resume))
        ended = launch.is_first and is_finished(start.folder, start.checkpoint, train.steps, probes=probes)
        finished = bool(gather("finished", "yes" if ended else "", launch)[0])
        if not finished:
            threads = set_threads(train.threads or (start.folder.threads() if resume else None), launch)
            run = assemble(start)
            check_prepared(experiment.data)
            if launch.is_first:
                run.data.prepare_data(partial(check_tests, experiment) if probes else None)
            check_data(run.data, launch, is_resumed=start.checkpoint is not None)
            if launch.is_first:
                if probes and start.checkpoint is None:  # what no probe can test leaves no folder
                    build_distance_probe(make_needle_probe(experiment, device_for("cpu")))
                start_folder(start, run.data, threads, restart=restart)
            gather(LAST, "", launch)
            run.stopping.begun = begun
            try:
                run.fit()
                if begun:
                    run.stopping.ignore()
            finally:
                run.recording.close(finished=not (sys.exc_info()[0] or run.stopping.stopped))
            if run.stopping.stopped:
                if launch.is_first:
                    saved = f"stopped after {run.module.consumed:,} tokens, all saved; continue with:\n  {command}"
                    show(run.stopping.fault or saved, error=True)
                run.trainer.strategy.barrier()  # torchrun ends the processes that are left once one has exited
                return FAILED if run.stopping.fault else STOPPED
        if launch.is_first:
            if finished:
                show(f"{experiment.run.path}: already finished; choose another --run.name to train again")
            show(report(start.folder))
    return 0


def profile_experiment(experiment: Experiment, folder: Path | None) -> int:
    """Write Lightning's table and trace of where time goes, to RUN/profile if nowhere else; return the exit status.

    A few steps are trained, of which nothing else is written.
    """
    path = folder or experiment.run.path / "profile"
    launch = find_launch(os.environ, experiment.train.devices, experiment.train.nodes)
    set_threads(experiment.train.threads, launch)
    run = assemble(Start(experiment, launch), PyTorchProfiler(path, "profile", row_limit=25))
    check_prepared(experiment.data)
    run.trainer.fit_loop.epoch_loop.max_steps = 6
    run.fit()
    if launch.is_first:
        show(f"profile: {path}; open its trace in ui.perfetto.dev")
    return 0


def assemble(start: Start, profiler: Profiler | None = None) -> Assembled:
    """Build everything a run needs, without training; training resumes from the checkpoint of `start` if it has one.

    A run with a `profiler` writes nothing, and a signal ends it at once.

    Raises: LabError if this machine cannot run it.
    """
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in HINTS:
        warnings.filterwarnings("ignore", message=message)
    experiment = start.experiment
    train = experiment.train
    device = device_for(train.accelerator, "train.accelerator")
    on_gpu = device.type == "cuda"
    strategy = train.resolved_strategy(on_gpu)
    copied = profiler is None and experiment.reads_token_types  # the run folder has what selects sentences
    data = PackedData(experiment, start.folder.token_types if copied else None)
    recording = Recording(experiment)
    stopping = Stopping(start.launch)
    saving = Checkpointing(start, recording, stopping)
    probing = Probing(experiment, recording, stopping, saving)
    callbacks: list[lightning.Callback] = [recording, stopping, saving, probing] if profiler is None else []
    autocast = train.bf16 and strategy != "fsdp"
    try:
        trainer = lightning.Trainer(
            accelerator="gpu" if on_gpu else "cpu",
            devices=train.devices,
            num_nodes=train.nodes,
            strategy=make_strategy(strategy, train.world_size),
            precision="bf16-mixed" if autocast else "32-true",
            max_steps=train.steps,
            max_epochs=-1,
            accumulate_grad_batches=train.accumulation,
            callbacks=callbacks,
            logger=False,
            profiler=profiler,
            plugins=[TorchElasticEnvironment() if start.launch.by_torchrun else LightningEnvironment()],
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    except MisconfigurationException as error:
        raise ConfigError(
            f"train.accelerator={train.accelerator}, train.devices={train.devices}: {first_line(error)}; use the "
            "devices of this machine"
        ) from error
    module = make_module(experiment, device, trained=start.checkpoint is not None)
    return Assembled(trainer, module, data, recording, stopping)


def make_module(experiment: Experiment, device: torch.device, *, trained: bool) -> Training:
    """Build the training of a model, which starts from other weights unless it has been `trained`."""
    train = experiment.train
    start = None
    if experiment.start is not None and not trained:
        start = partial(start_from, path=Path(experiment.start.path))
    compiler = "inductor" if choose_compile(train.compile, device)[0] else None
    backend, _ = choose_for(train.backend, device, experiment.model.head_dim, bf16=train.bf16)
    make = decoder_of(experiment, backend=backend, recompute=train.recompute, compiler=compiler)
    whole = train.keeps_whole(experiment.model.n_parameters())
    sharding = Sharding(torch.bfloat16 if train.bf16 else None, train.sharded_over, whole)
    return Training(make, experiment.optim, train, seed=experiment.run.seed, sharding=sharding, start=start)


def make_strategy(strategy: str, world_size: int) -> Strategy | str:
    if strategy == "fsdp":
        return FullySharded(data_parallel_size=world_size, tensor_parallel_size=1, timeout=TIMEOUT)
    return DDPStrategy(gradient_as_bucket_view=True, timeout=TIMEOUT) if strategy == "ddp" else "auto"


def report(folder: RunFolder) -> str:
    """Format the results: effective length by consumed tokens, or the loss of a run without probes, and the folder."""
    last = deque(folder.records("metrics.jsonl"), maxlen=1)
    if last and not folder.last_probe():
        mean = "-" if last[0]["loss"] is None else f"{last[0]['loss']:.3f}"
        return f"\nloss {mean} after {last[0]['consumed_tokens']:,} tokens, no probes\n\neverything is in {folder.path}"
    lines = ["", f"{'consumed tokens':>16} {'effective length':>17} {'f(effective length)':>20} {'held-out loss':>14}"]
    for probe in folder.probes():
        loss = probe.get("held_out_loss")
        f = probe.get("f_at_effective_length") if probe["effective_length"] else None
        lines.append(
            f"{probe['consumed_tokens']:>16,} "
            f"{shown_length(probe['effective_length'], probe.get('first_length')):>17} "
            f"{'-' if f is None else format(f, ','):>20} {'' if loss is None else format(loss, '.3f'):>14}"
        )
    return "\n".join([*lines, f"\neverything is in {folder.path}"])
