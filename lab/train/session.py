"""Start or resume a run: train, record and report."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from lab.command import FAILED, STOPPED, show
from lab.config import Experiment
from lab.errors import ConfigError, MissingPackage
from lab.files import write_atomic
from lab.launch import Launch, find_launch, set_threads
from lab.model import devices
from lab.positions.base_bound import base_warning
from lab.probe.curve import shown_length
from lab.train.assembly import Run, assemble
from lab.train.checkpoints import Checkpoint
from lab.train.choices import choose_backend, choose_compile, computes_in_bf16, reductions, training_device
from lab.train.folder import RunFolder, is_finished
from lab.train.picture import draw_run
from lab.train.starting import find_start, own_run, start_folder

DONE = 0
PROFILED, UNPROFILED = 3, 3  # steps; the first ones compile and let the allocator grow


def run_experiment(
    experiment: Experiment, resume: bool, command: str, *, restart: bool = False, exits: bool = False
) -> int:
    """Train, record and report, as the only process that writes to the run folder; return the exit status.

    Where the process `exits` afterwards, signals are ignored from the end of the training on. `command` continues the
    run.

    Raises: LabError for what the user can correct.
    """
    launch = find_launch(os.environ, experiment.train.devices, experiment.train.nodes)
    with own_run(experiment, launch):
        return train(experiment, launch, resume, command, restart=restart, exits=exits)


def train(experiment: Experiment, launch: Launch, resume: bool, command: str, *, restart: bool, exits: bool) -> int:
    """Train, record and report; return the exit status.

    Raises: LabError for what the user can correct.
    """
    folder = RunFolder(experiment.run.path)
    checkpoint = None if restart else find_start(experiment, folder, resume, launch)
    finished = is_finished(folder, checkpoint, experiment.train.steps)
    if not finished or launch.world_size > 1:  # several processes find together that nothing is left to train
        threads = set_threads(experiment.train.threads or (folder.threads() if resume else None), launch)
        run = assemble(experiment, folder, launch, start=checkpoint)
        run.data.check_prepared()
        if launch.is_first:
            run.data.prepare_data()
            start_folder(experiment, folder, checkpoint, run.data, threads, restart=restart)
            show(announce(experiment, checkpoint))
        try:
            fit(run)
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
        show(report(experiment, folder))
    return DONE


def profile_experiment(experiment: Experiment, folder: Path | None) -> int:
    """Write a Chrome trace and a table of where time goes, to RUN/profile if nowhere else; return the exit status.

    A few steps are trained, of which nothing else is written. Of several processes the first is profiled.

    Raises: LabError.
    """
    from lightning.pytorch.profilers import PassThroughProfiler, PyTorchProfiler
    from torch.profiler import schedule

    train, path = experiment.train, folder or experiment.run.path / "profile"
    if train.steps < PROFILED + UNPROFILED:
        raise ConfigError(
            f"train.tokens={train.tokens}: --profile trains {PROFILED + UNPROFILED} steps of {train.batch_tokens:,} "
            "tokens; raise it"
        )
    launch = find_launch(os.environ, train.devices, train.nodes)

    def write(found: Any) -> None:
        path.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(path / "trace.json"))

    packs = train.accumulation  # the profiler counts these
    begin = schedule(wait=(UNPROFILED - 1) * packs, warmup=packs, active=PROFILED * packs)
    profiler = PyTorchProfiler(schedule=begin, on_trace_ready=write, row_limit=25)
    set_threads(train.threads, launch)
    chosen = profiler if launch.is_first else PassThroughProfiler()
    run = assemble(experiment, RunFolder(experiment.run.path), launch, profiler=chosen)
    run.data.check_prepared()
    run.trainer.fit_loop.epoch_loop.max_steps = PROFILED + UNPROFILED
    fit(run)
    if launch.is_first:
        write_atomic(path / "profile.txt", profiler.summary().encode())
        show(f"profile: {path / 'profile.txt'}; open {path / 'trace.json'} in ui.perfetto.dev")
    return DONE


def fit(run: Run) -> None:
    """Train.

    Raises: KeyboardInterrupt where Ctrl-C comes before the first step, for which Lightning raises SystemExit.
    """
    try:
        run.trainer.fit(run.module, datamodule=run.data)
    except SystemExit as error:
        raise (KeyboardInterrupt if isinstance(error.__context__, KeyboardInterrupt) else error) from None


def announce(experiment: Experiment, checkpoint: Checkpoint | None) -> str:
    """Format the run's size, its attention kernel, whether blocks are compiled, and the reasons."""
    device = training_device(experiment)
    backend, reason = choose_backend(experiment, device)
    compiled, why = choose_compile(experiment, device)
    start = f"; continues at {checkpoint.consumed_tokens:,} tokens" if checkpoint else ""
    train, path = experiment.train, experiment.run.path
    warning = base_warning(experiment.model.theta, experiment.data.window)
    shared = f", each pack shared by {train.context_parallel} processes" if train.context_parallel > 1 else ""
    dtype = torch.bfloat16 if computes_in_bf16(experiment, device) else torch.float32
    multiplied = devices.describe(dtype) if device.type == "cpu" else None
    lines = [multiplied, *reductions(experiment), warning]
    notes = "".join(f"\n{line}" for line in filter(None, lines))
    return (
        f"run: {path}: {experiment.model.n_parameters():,} parameters, {train.steps:,} steps of "
        f"{train.batch_tokens:,} tokens on {device.type}{shared}{start}\nattention: {backend} ({reason})\n"
        f"compiled blocks: {'yes' if compiled else 'no'} ({why}){notes}"
    )


def report(experiment: Experiment, folder: RunFolder) -> str:
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
    lines.append(f"\neverything is in {folder.path}")
    if experiment.track.picture:
        try:
            lines.append(f"picture: {draw_run(folder.path)}")
        except MissingPackage as error:
            lines.append(f"no picture: {error}")
    return "\n".join(lines)
