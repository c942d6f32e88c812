"""Start or resume a run: train, record and report."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from lab.command import FAILED, STOPPED, show
from lab.config import Experiment
from lab.data.preparation import shard_folder, summarise
from lab.data.selecting import read_token_types, result_file
from lab.data.shaped import shape_corpus, shape_record, summary_of_shape
from lab.data.shards import TokenStore
from lab.data.tokenizer import load_tokenizer
from lab.errors import CheckpointError, ConfigError, MissingPackage
from lab.files import read_object, write_atomic, write_json
from lab.launch import Launch, find_launch
from lab.model import products
from lab.positions.base_bound import base_warning
from lab.probe.curve import shown_length
from lab.probe.protocols import window_warning
from lab.source import tokenizer_of
from lab.train import checkpoints
from lab.train.assembly import Run, assemble
from lab.train.callbacks.profiling import Profiling
from lab.train.callbacks.watching import Watching
from lab.train.choices import choose_backend, choose_compile, computes_in_bf16, reductions, training_device
from lab.train.folder import RunFolder, is_finished
from lab.train.picture import draw_run
from lab.train.processes import meet_again
from lab.train.starting import find_start, own_run, start_folder
from lab.train.threads import set_threads

DONE = 0


def run_experiment(
    experiment: Experiment,
    resume: bool,
    command: str,
    *,
    restart: bool = False,
    exits: bool = False,
    profiling: Profiling | None = None,
) -> int:
    """Train, record and report, as the only process that writes to the run folder; return the exit status.

    Where the process `exits` afterwards, signals are ignored from the end of the training on. With `profiling` the
    training neither saves nor probes, and ends when the profile does.

    Raises: LabError for what the user can correct.
    """
    launch = find_launch(os.environ, experiment.train.devices, experiment.train.nodes)
    echo = show if launch.is_first else silent
    if launch.restarts and restart:
        raise ConfigError(
            "--restart: torchrun has started the ranks again, and what they have trained would be moved aside; "
            f"continue with: {command}"
        )
    resume = resume or launch.restarts > 0
    with own_run(experiment, launch):
        return train(experiment, resume, command, launch, echo, restart=restart, exits=exits, profiling=profiling)


def train(
    experiment: Experiment,
    resume: bool,
    command: str,
    launch: Launch,
    echo: Any,
    *,
    restart: bool,
    exits: bool,
    profiling: Profiling | None,
) -> int:
    """Train, record and report; return the exit status.

    Raises: LabError for what the user can correct.
    """
    folder = RunFolder(experiment.run.path)
    checkpoint = None if restart else find_start(experiment, folder, resume, launch, echo)
    finished = is_finished(folder, checkpoint, experiment.train.steps)
    if finished and launch.world_size == 1:  # several processes do so together, in trainer.fit
        return already_finished(experiment, folder, echo)
    threads = set_threads(experiment.train.threads or (folder.threads() if resume else None), launch)
    run = assemble(experiment, folder, launch, start=checkpoint)
    accompany(run, Watching(launch, command, exits=exits), profiling)
    run.data.check_prepared()
    if launch.is_first:
        run.data.prepare_data()
        check_vocabulary(experiment)
        warning = window_warning(experiment.probe, load_tokenizer(shard_folder(experiment.data)), experiment.reach)
        token_types = choose_token_types(experiment, folder, checkpoint, echo)
        echo(f"data: {summarise(shard_folder(experiment.data)).summary}")
        if warning:
            echo(warning)
        shape = planned_shape(experiment, folder, checkpoint)
        start_folder(experiment, folder, checkpoint, threads, restart=restart)
        if token_types is not None:
            write_atomic(folder.token_types, token_types)
        if shape is not None:
            summary, record = shape
            echo(summary)
            write_json(folder.path / "shape.json", record)
    echo(announce(experiment, checkpoint))
    meet_again(launch, "nccl" if training_device(experiment).type == "cuda" else "gloo")
    try:
        run.trainer.fit(run.module, datamodule=run.data)
        if exits:
            run.stopping.ignore()
    except SystemExit as error:  # raised by Lightning on Ctrl-C before the first step
        raise (KeyboardInterrupt if isinstance(error.__context__, KeyboardInterrupt) else error) from None
    finally:
        for logger in run.trainer.loggers:
            logger.finalize("unfinished" if sys.exc_info()[0] or run.stopping.stopped else "finished")
    if run.stopping.stopped:
        saved = f"stopped after {run.module.consumed:,} tokens, all saved; continue with:\n  {command}"
        echo(run.stopping.fault or saved, error=True)
        run.trainer.strategy.barrier()  # a launcher ends the processes that are left once one has exited
        status = FAILED if run.stopping.fault else STOPPED
        return status if launch.returns_status else DONE
    if finished:
        return already_finished(experiment, folder, echo)
    if launch.is_first and profiling is None:
        echo(report(experiment, folder))
    return DONE


def accompany(run: Run, watching: Watching, profiling: Profiling | None) -> None:
    """Add the callbacks that depend on how the run was started."""
    if profiling is not None:
        profiling.attach(run.trainer)
    run.trainer.callbacks.append(watching)  # type: ignore[attr-defined]


def already_finished(experiment: Experiment, folder: RunFolder, echo: Any) -> int:
    """Report on a run that has no step left."""
    echo(f"{folder.path}: already finished; choose another --run.name to train again")
    echo(report(experiment, folder))
    return DONE


def silent(text: object, *, error: bool = False) -> None:
    """Print nothing."""


def check_vocabulary(experiment: Experiment) -> None:
    """Refuse a model with fewer embeddings than tokens, and weights that were trained with another tokenizer.

    Raises: ConfigError.
    """
    tokens = load_tokenizer(shard_folder(experiment.data)).get_vocab_size()
    if tokens > experiment.model.vocab_size:
        raise ConfigError(
            f"model.vocab_size={experiment.model.vocab_size}: the tokenizer has {tokens} tokens; use {tokens} or more"
        )
    start = experiment.start
    own = tokenizer_of(Path(start.path)) if start is not None else None
    if start is not None and own is not None:
        theirs, ours = load_tokenizer(own).get_vocab(), load_tokenizer(shard_folder(experiment.data)).get_vocab()
        if theirs != ours:
            differ = len(theirs.items() ^ ours.items())
            raise ConfigError(
                f"data.tokenizer: is not the one that start.path={start.path} was trained with ({differ} entries "
                "differ); leave data.tokenizer out"
            )


def planned_shape(
    experiment: Experiment, folder: RunFolder, checkpoint: checkpoints.Checkpoint | None
) -> tuple[str, dict[str, Any]] | None:
    """Plan the shape of a run that has one, as text and as a record; a resumed run must have its first plan.

    Raises: ConfigError for a target out of reach, CheckpointError for another plan.
    """
    shape, data = experiment.shape, experiment.data
    if shape is None:
        return None
    store = TokenStore.open(shard_folder(data), "train")
    shaped = shape_corpus(shape, data, store, experiment.mask)
    cost = shaped.cost(store, experiment.train.tokens)
    record, path = shape_record(shape, shaped.plan, cost), folder.path / "shape.json"
    if checkpoint is not None and path.exists():
        before = read_object(path, CheckpointError, "restore it, or begin anew with --restart")
        if any(before.get(name) != record[name] for name in ("draws", "weights")):
            raise CheckpointError(
                f"{path}: the plan computed now differs, as the solver or the corpus has changed; continue on the "
                "first machine, or choose another --run.name"
            )
    return summary_of_shape(shape, shaped.plan, cost), record


def choose_token_types(
    experiment: Experiment, folder: RunFolder, checkpoint: checkpoints.Checkpoint | None, echo: Any
) -> bytes | None:
    """Read and check the impactful token types that select sentences; a resumed run keeps those it started with.

    Raises: LabError.
    """
    if experiment.skip is None or not experiment.reads_token_types:
        return None
    path = Path(experiment.skip.selection)
    found = result_file(path if checkpoint is None else folder.token_types)
    read_token_types(found, load_tokenizer(shard_folder(experiment.data)))
    kept = found.read_bytes()
    if checkpoint is not None and result_file(path).is_file() and result_file(path).read_bytes() != kept:
        echo(f"skip.selection={path}: has changed; the run continues with {found}, as it started", error=True)
    return kept


def announce(experiment: Experiment, checkpoint: checkpoints.Checkpoint | None) -> str:
    """Format the run's size, its attention kernel, whether blocks are compiled, and the reasons."""
    device = training_device(experiment)
    backend, reason = choose_backend(experiment, device)
    compiled, why = choose_compile(experiment, device)
    start = f"; continues at {checkpoint.consumed_tokens:,} tokens" if checkpoint else ""
    train, path = experiment.train, experiment.run.path
    warning = base_warning(experiment.model.theta, experiment.data.window)
    shared = f", each pack shared by {train.context_parallel} processes" if train.context_parallel > 1 else ""
    dtype = torch.bfloat16 if computes_in_bf16(experiment, device) else torch.float32
    multiplied = products.describe(dtype) if device.type == "cpu" else None
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
