"""Train a model, count its positions, probe its effective length.

    probe-lab fit CONFIG [--section.key=value ...] [--resume | --restart] [--print_config] [--dry_run | --profile]

CONFIG is a YAML file, or the name of one of configs/, as cpu_demo. Every setting can be changed on the command line:

    probe-lab fit configs/cpu_demo.yaml
    probe-lab fit configs/cpu_demo.yaml --run.name=wide --model.d_model=256 --optim.lr=2e-3
    probe-lab fit configs/cpu_demo.yaml --resume
    probe-lab fit configs/tiny_2k.yaml --print_config
    probe-lab fit configs/tiny_2k.yaml --dry_run --memory_gib=80
    probe-lab fit configs/cpu_demo.yaml --profile -o FOLDER

--dry_run needs no GPU, shards or weights. The table of --profile has the update's pack in the middle. With
train.devices > 1 the command starts torchrun, which starts a process for each device.

The exit status is 1 where a loss or gradient is not finite, or a rank has died. Stopped by a signal, a run is saved.
"""

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lab.config import Experiment, load_experiment
from lab.core.command import EXIT_STOPPED, NOTHING_WRITTEN, Arguments, CommandSpec, run, show, start
from lab.core.errors import ConfigError, LabError, first_line
from lab.core.launch import follow_torchrun, needs_torchrun, read_launch, start_ranks
from lab.core.startup import take_signals
from lab.train.agreement import await_end, check_ranks, end_rank, end_together, speaks, tell
from lab.train.environment import check_preflight

Work = Callable[[Experiment, Namespace], str | int]
SPEC = CommandSpec(
    description=__doc__,
    options=Experiment,
    flags={
        "--restart": "Start again; the old run folder becomes NAME.before-1.",
        "--resume": "Continue after Ctrl-C, or start if there is nothing yet.",
        "--print_config": "Print every setting of the run, and train nothing.",
        "--profile": "Train apart from the run, past one update, and write a trace and a table of three packs.",
        "--dry_run": "Print memory of each GPU, hours, and which shards or weights are missing; train nothing.",
    },
    values={
        "-o": "Folder of --profile; default: RUN/profile.",
        "--memory_gib": "With --dry_run: reject a run that GPUs of so many GiB cannot hold with 5% to spare.",
        "--utilisation": "With --dry_run: share of the GPUs' peak that causal FLOPs take, for hours of your own.",
    },
    missing="CONFIG: must be the first argument, a YAML file; for instance configs/cpu_demo.yaml",
)


def parse(args: Arguments) -> Experiment:
    """Read the config and its overrides; reject options that contradict each other or would be ignored."""
    options = args.options
    for name, flag in (("-o", "profile"), ("--memory_gib", "dry_run"), ("--utilisation", "dry_run")):
        value = getattr(options, name.lstrip("-"))
        if value is not None and not getattr(options, flag):
            raise ConfigError(f"{name}={value}: would be ignored without --{flag}; leave it out")
    flags = [flag for flag in SPEC.flags if getattr(options, flag.lstrip("-"))]
    if errors := [f"{name}: contradicts {flags[-1]}; leave one of them out" for name in flags[:-1]]:
        raise ConfigError(*errors)
    return load_experiment(Path(args.positional[0]), args.settings)


def resume_command(arguments: Sequence[str]) -> str:
    """Write the command that continues a run; one of several nodes is started by the options of its torchrun."""
    words = [word for word in arguments if word not in ("--resume", "--restart")]
    launch = read_launch()
    command = "probe-lab fit" if launch.world_size == launch.local_world_size else "torchrun ... -m lab.fit"
    return f"{command} {shlex.join([*words, '--resume'])}"


def read_arguments(arguments: Sequence[str], work: Work = lambda experiment, options: 0) -> int:
    """Print the config if that is requested, or do some work with it and the options; return the exit status."""
    launch = read_launch()

    def print_or_work(args: Arguments) -> str | int:
        try:
            experiment = parse(args)
            # The ranks compare their settings first: if these differ, later checks fail on some ranks only, and a rank
            # that trains waits for one that only prints.
            if launch.world_size > 1:
                check_ranks(experiment, vars(args.options), launch)
            if args.options.print_config:
                done: str | int = experiment.to_yaml().rstrip("\n")
            else:
                done = work(experiment, args.options)
            if args.options.print_config or args.options.dry_run:
                end_together(launch)
            return done
        except Exception as error:
            await_end()
            # `report` tells the other ranks of a LabError. Any other error ends this rank with a traceback, and the
            # others with a line.
            if not isinstance(error, LabError):
                tell(f"{type(error).__name__} ({first_line(error)})", launch)
            raise

    def report(message: str) -> None:
        """Print an error once for each node, and tell the other ranks."""
        if speaks(launch):
            show(message, error=True)
        tell(message, launch)

    stopped = f"interrupted before training; continue with:\n  {resume_command(arguments)}"
    if "--profile" in arguments:
        stopped = NOTHING_WRITTEN
    # A thread takes the signals of a rank, as its main thread may wait in C++. Until the run trains, a signal ends it.
    if launch.by_torchrun:
        take_signals().act = lambda number: end_rank(stopped, EXIT_STOPPED, launch)
    return run(replace(SPEC, stopped=stopped), print_or_work, arguments, report=report)


if __name__ == "__main__":

    def train(experiment: Experiment, options: Namespace) -> str | int:
        """Train, or what else the command line asks for; torch is loaded here, after the settings have been checked."""
        if options.dry_run:
            from lab.train.dry_run import estimate, needed_here

            return f"{estimate(experiment, options.memory_gib, options.utilisation)}\n\n{needed_here(experiment)}"
        starts_ranks = needs_torchrun(experiment.train.devices, experiment.train.nodes)
        if not options.profile:
            check_preflight(experiment, resume=options.resume, restart=options.restart)
        # Before torchrun starts, and before any data is prepared: a machine without a GPU is reported at once.
        if experiment.train.accelerator == "gpu":
            from lab.model.devices import device_for

            device_for("gpu", "train.accelerator")
        again = resume_command(sys.argv[1:])
        if starts_ranks:
            return start_ranks(sys.argv[1:], experiment.train.devices, again)
        from lab.train.run import profile_experiment, run_experiment

        if options.profile:
            return profile_experiment(experiment, None if options.o is None else Path(options.o))
        return run_experiment(experiment, options.resume, again, restart=options.restart, started=started)

    # The libraries read these variables once, as they are loaded.
    # Threads that spin while they wait take the cores from others, and cost up to 8 times.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Packs of many lengths leave gaps in the memory, which segments that grow can fill. The other variable is the name
    # of older versions.
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    # Until a larger block has been freed, glibc returns every tensor of a step to the system and maps it again, which
    # takes a tenth of a small model's step. Blocks of 32 MiB and more change nothing.
    bytearray(24 * 2**20)
    # torch.profiler's library prints its own stages.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    started = follow_torchrun()
    start(partial(read_arguments, work=train))
