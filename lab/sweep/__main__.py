"""Train the runs of a sweep on this machine, without a server; those that are finished are skipped.

    python -m lab.sweep FILE [--jobs=2] [--seeds=5] [--dry_run] [--section.key=value ...]

FILE is a YAML file of sweeps/ in wandb's format, of method grid or random; `wandb sweep FILE` runs the same:

    python -m lab.sweep sweeps/windows_mini.yaml --dry_run          list the runs and their commands
    python -m lab.sweep sweeps/windows_mini.yaml --jobs=2           two runs at once, each on half of the cores
    python -m lab.sweep sweeps/windows_mini.yaml --seeds=5          with the seeds 0 to 4 instead of the file's
    python -m lab.sweep sweeps/windows_mini.yaml --index=3          one run, as a task of a SLURM array does

Settings (--train.tokens=100000) go to every run. The same command continues after Ctrl-C or a crash. docs/sweeps.md

Exit status: 0 all finished; 1 a run failed, the others are done; 2 a mistake in the input; 75 stopped after saving.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from lab.command import CONTINUES, Syntax, Words, read_options, run, settings_lines, show, start
from lab.errors import ConfigError
from lab.schema import NonNegative, Positive, Section
from lab.sweep.planning import plan
from lab.sweep.reading import read_sweep
from lab.sweep.schedule import exit_status, states_of, table, train

SYNTAX = Syntax(
    flags=("--dry_run",), missing="FILE: must be the first argument, a sweep; for instance sweeps/windows_mini.yaml"
)


@dataclass(frozen=True, kw_only=True)
class Options(Section):
    """The options of a sweep."""

    jobs: Positive = 1
    """Runs at once, each on its part of the cores unless train.threads is set."""
    seeds: Positive | None = None
    """Seeds of a grid, from 0, in place of the file's values of run.seed."""
    seed: NonNegative | None = None
    """Seed of the draws of method: random; left out, 0."""
    index: NonNegative | None = None
    """Number of the only run to train, from 0 in the order of --dry_run."""


def work(words: Words) -> int:
    """Read the command line, and run the sweep or print what was requested.

    Raises: LabError.
    """
    names = [field.name for field in fields(Options)]
    options = read_options(Options, {key: value for key, value in words.settings.items() if key in names})
    given = {key: value for key, value in words.settings.items() if key not in names}
    runs = plan(read_sweep(Path(words.places[0]), seeds=options.seeds, seed=options.seed), given)
    if options.index is not None and options.index >= len(runs):
        raise ConfigError(f"--index={options.index}: must be < {len(runs)}, the number of runs; lower it")
    if options.index is not None:
        runs = [runs[options.index]]
    if words.options.dry_run:
        commands = [shlex.join(one.words(one.threads(options.jobs))) for one in runs]
        show("\n".join([*table(states_of(runs)), "", *commands]))
        return 0
    states = train(runs, options.jobs)
    show("\n".join(table(states)))
    return exit_status(states)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run(
        __doc__,
        arguments,
        work,
        syntax=SYNTAX,
        settings=lambda: ["Options (default; meaning):", "", *settings_lines(Options)],
        stopped=CONTINUES,
    )


if __name__ == "__main__":
    start(main)
