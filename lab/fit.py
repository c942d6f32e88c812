"""Train a model, count its positions, probe its effective length.

    python -m lab.fit CONFIG [--section.key=value ...] [--resume | --restart] [--print_config] [--dry_run | --profile]

CONFIG is a YAML file, or the name of one of configs/, as cpu_demo. Every setting can be changed on the command line:

    python -m lab.fit configs/cpu_demo.yaml
    python -m lab.fit configs/cpu_demo.yaml --run.name=wide --model.d_model=256 --optim.lr=2e-3
    python -m lab.fit configs/cpu_demo.yaml --resume           continue after Ctrl-C, or start if there is nothing yet
    python -m lab.fit configs/cpu_demo.yaml --restart          begin anew; the old run folder becomes NAME.before-1
    python -m lab.fit configs/tiny_2k.yaml --print_config      print every setting, parameters, FLOPs and steps
    python -m lab.fit configs/tiny_2k.yaml --dry_run --memory_gib=80       memory of each GPU, hours and bytes on disk

    python -m lab.fit configs/cpu_demo.yaml --profile -o FOLDER            where the time of a few steps goes

--dry_run trains nothing and needs no GPU, shards or weights; --gpu=H100 and --utilisation=0.4 change the estimated
hours. --profile trains six steps apart from the run, and writes trace.json and profile.txt to FOLDER, or to
RUN/profile.

Exit status: 0 done; 1 a loss or gradient is not finite, or a rank has died; 2 invalid input, a full disk or a run
folder in use, at most three lines on stderr; 75 stopped by a signal after saving.
"""

from __future__ import annotations

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lab.command import NOTHING_WRITTEN, Syntax, Words, failed, help_status, settings_lines, show
from lab.config import Experiment, load_experiment
from lab.errors import ConfigError, LabError
from lab.estimate.absent import load_without_weights
from lab.estimate.options import DryRun, separate
from lab.files import on_disk
from lab.launch import read_launch

SYNTAX = Syntax(
    flags=("--resume", "--restart", "--print_config", "--dry_run", "--profile"),
    values=("-o",),
    missing="CONFIG: must be the first argument, a YAML file; for instance configs/cpu_demo.yaml",
)


class Arguments(NamedTuple):
    """The parsed command line; `dry_run` is None for a run that is to be trained, `output` where a profile goes."""

    experiment: Experiment
    resume: bool
    restart: bool
    print_config: bool
    dry_run: DryRun | None
    profile: bool = False
    output: Path | None = None


def parse(words: Words) -> Arguments:
    """Read the config, its overrides and the flags.

    Raises: ConfigError.
    """
    path, options = Path(words.places[0]), words.options
    refuse_ignored(options)
    if not options.dry_run:
        if options.resume and options.restart:
            raise ConfigError("--restart: contradicts --resume; leave one of them out")
        experiment = load_experiment(path, words.settings)
        output = None if options.o is None else Path(options.o)
        return Arguments(
            experiment, options.resume, options.restart, options.print_config, None, options.profile, output
        )
    settings, dry_run = separate(words)
    return Arguments(load_without_weights(path, settings), False, False, False, dry_run)


def refuse_ignored(options: Namespace) -> None:
    """Refuse options that would be ignored beside --profile, or without it.

    Raises: ConfigError.
    """
    if options.o is not None and not options.profile:
        raise ConfigError(f"-o {options.o}: would be ignored without --profile; leave it out, or set run.folder")
    given = [name for name in ("resume", "restart", "print_config", "dry_run") if getattr(options, name)]
    if options.profile and given:
        raise ConfigError(*(f"--{name}: contradicts --profile; leave one of them out" for name in given))


def settings() -> list[str]:
    """Describe every setting of a run, and the options of --dry_run."""
    return [
        "Settings (default; meaning):",
        "",
        *settings_lines(Experiment),
        "",
        "With --dry_run:",
        "",
        *settings_lines(DryRun),
    ]


def read_arguments(arguments: Sequence[str]) -> Arguments | int:
    """Read the command line; return the exit status if it is invalid or only prints help or the config."""
    status = help_status(__doc__, arguments, settings)
    if status is not None:
        return status
    try:
        parsed = parse(SYNTAX.read(arguments))
    except LabError as error:
        return failed(error)
    if parsed.print_config:
        show(parsed.experiment.describe() + parsed.experiment.to_yaml(), end="")
        return 0
    return parsed


def resume_command(arguments: Sequence[str]) -> str:
    """Write the command that continues this run."""
    words = [word for word in arguments if word not in ("--resume", "--restart")] + ["--resume"]
    return shlex.join(["python", "-m", "lab.fit", *words])


if __name__ == "__main__":
    parsed = read_arguments(sys.argv[1:])
    if isinstance(parsed, int):
        raise SystemExit(parsed)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once by OpenMP; spinning threads cost up to 8 times
    experiment, again = parsed.experiment, resume_command(sys.argv[1:])
    launch = read_launch(os.environ, experiment.train.devices, experiment.train.nodes)
    try:  # torch loads here, after the settings have been checked
        with on_disk():
            if parsed.dry_run is not None:
                from lab.estimate.command import estimate

                show(estimate(experiment, parsed.dry_run))
                status = 0
            elif parsed.profile:
                os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch.profiler's library prints its own stages
                from lab.train.profiling import profile_experiment

                status = profile_experiment(experiment, parsed.output, again)
            else:
                from lab.train.session import run_experiment

                status = run_experiment(experiment, parsed.resume, again, restart=parsed.restart, exits=True)
    except LabError as error:
        status = failed(error, silent=not launch.prints_faults)
    except KeyboardInterrupt as error:
        stopped = f"interrupted before training; continue with:\n  {again}"
        stopped = NOTHING_WRITTEN if parsed.profile else stopped
        status = failed(error, stopped, silent=not launch.is_first)
    raise SystemExit(status)
