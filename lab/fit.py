"""Train a model, count its positions, probe its effective length.

    python -m lab.fit CONFIG [--section.key=value ...] [--resume] [--print_config]

CONFIG is a YAML file of configs/. Any setting can be given on the command line:

    python -m lab.fit configs/cpu_demo.yaml
    python -m lab.fit configs/cpu_demo.yaml --run.name=wide --model.d_model=256 --optim.lr=2e-3
    python -m lab.fit configs/cpu_demo.yaml --resume           go on after Ctrl-C, or start if there is nothing yet
    python -m lab.fit configs/tiny_2k.yaml --print_config      show every setting and what follows from it
    python -m lab.fit configs/tiny_2k.yaml --dry_run --memory_gib=80       memory of each GPU, hours and bytes on disk

--dry_run trains nothing and needs no GPU, shards or weights; --gpu=H100 and --utilisation=0.4 change the hours.

Exit status: 0 done; 2 a mistake in the input, one line each on stderr; 75 stopped by a signal after saving.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lab.config import Experiment, load_experiment
from lab.errors import ConfigError, LabError
from lab.launch import read_launch
from lab.settings import all_settings, parse_overrides

FLAGS = ("--help", "-h", "--resume", "--print_config")
WRONG, INTERRUPTED = 2, 75


class Arguments(NamedTuple):
    """What the command line asks for."""

    experiment: Experiment
    resume: bool
    print_config: bool


def parse(arguments: Sequence[str]) -> Arguments | None:
    """Read the command line; None when help was asked for.

    Raises: ConfigError.
    """
    flags = {word for word in arguments if word in FLAGS}
    rest = [word for word in arguments if word not in FLAGS]
    if flags & {"--help", "-h"}:
        return None
    if not rest or rest[0].startswith("--"):
        raise ConfigError("CONFIG: must be the first argument, a YAML file; for instance configs/cpu_demo.yaml")
    experiment = load_experiment(Path(rest[0]), parse_overrides(rest[1:]))
    return Arguments(experiment, "--resume" in flags, "--print_config" in flags)


def help_text() -> str:
    """Describe the command and every setting."""
    lines = [str(__doc__), "Settings (default; meaning):", ""]
    for dotted, default, meaning in all_settings(Experiment):
        lines.append(f"  --{dotted}={default}\n      {' '.join(meaning.split())}")
    return "\n".join(lines)


def parse_or_exit(arguments: Sequence[str]) -> Arguments:
    """Read the command line; on a mistake, on --help and on --print_config the process ends here."""
    try:
        parsed = parse(arguments)
    except LabError as error:
        print(error, file=sys.stderr)
        raise SystemExit(WRONG) from None
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` may close the pipe before all is printed
    if parsed is None:
        print(help_text())
        raise SystemExit(0)
    if parsed.print_config:
        print(parsed.experiment.describe() + parsed.experiment.to_yaml(), end="")
        raise SystemExit(0)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    return parsed


def resume_command(arguments: Sequence[str]) -> str:
    """Write the command that goes on with this run."""
    words = [*arguments] if "--resume" in arguments else [*arguments, "--resume"]
    return shlex.join(["python", "-m", "lab.fit", *words])


if __name__ == "__main__":
    if "--dry_run" in sys.argv[1:] and not {"--help", "-h"} & set(sys.argv[1:]):
        from lab.estimate.command import dry_run, print_dry_run  # torch loads here

        raise SystemExit(print_dry_run(sys.argv[1:], dry_run))
    asked = parse_or_exit(sys.argv[1:])
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once by OpenMP; spinning threads cost up to 8 times
    train = asked.experiment.train
    launch = read_launch(os.environ, train.devices, train.nodes)
    try:
        from lab.session import run_experiment  # torch loads here, after the settings have been checked

        status = run_experiment(asked.experiment, asked.resume, resume_command(sys.argv[1:]))
    except LabError as error:
        if launch.is_heard:
            print(error, file=sys.stderr)
        status = WRONG
    except KeyboardInterrupt:
        if launch.is_first:
            print(f"interrupted before training; go on with:\n  {resume_command(sys.argv[1:])}", file=sys.stderr)
        status = INTERRUPTED
    raise SystemExit(status)
