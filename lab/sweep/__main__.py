"""Train the runs of a sweep on this machine, without a server; those that are finished are skipped.

    probe-lab sweep FILE [--jobs=2] [--seeds=5] [--dry_run] [--section.key=value ...]

FILE is a YAML file of sweeps/ in wandb's format, of method grid; `wandb sweep FILE` runs the same:

    probe-lab sweep sweeps/windows_mini.yaml --dry_run
    probe-lab sweep sweeps/windows_mini.yaml --jobs=2
    probe-lab sweep sweeps/windows_mini.yaml --seeds=5
    probe-lab sweep sweeps/windows_mini.yaml --index=3

Settings (--train.tokens=100000) go to every run. What a run prints is appended to sweep.log in its folder. A failure
does not stop the others. A run that another process trains is left to it. The same command continues after Ctrl-C or a
crash. docs/sweeps.md

The exit status is 1 where a run failed and the others are done.
"""

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lab.core.arguments import split_options
from lab.core.command import CONTINUES, EXIT_FAILURE, EXIT_STOPPED, Arguments, CommandSpec, run, show, start
from lab.core.errors import ConfigError
from lab.core.launch import COPIES, check_copies
from lab.core.locks import LOCK_NAME
from lab.core.schema import NonNegative, Positive, Section
from lab.sweep.nodes import Node, is_trained, run_nodes
from lab.sweep.planning import PlannedRun, plan_sweep


class SweepOptions(Section):
    """The options of a sweep."""

    jobs: Positive = 1
    """Runs at once, each on its part of the cores unless train.threads is set."""
    seeds: Positive | None = None
    """Seeds, from 0, in place of the file's values of run.seed."""
    index: NonNegative | None = None
    """Number of the only run to train, from 0 in the order of --dry_run."""


def list_run_nodes(runs: Sequence[PlannedRun], jobs: int) -> list[Node]:
    """List the nodes that train runs, `jobs` at once."""
    nodes = []
    for planned in runs:
        settings = " ".join(f"{key}={value}" for key, value in planned.swept.items())
        nodes.append(
            Node(
                name=f"{planned.path.name}  {settings}",
                command=planned.command(jobs),
                is_finished=partial(is_trained, planned.experiment),
                output=planned.path / "sweep.log",
                lock=planned.path / LOCK_NAME,
            )
        )
    return nodes


def describe_node(node: Node) -> str:
    return f"{node.name}  {node.state}  {node.reason}".rstrip()


def train_runs(runs: Sequence[PlannedRun], jobs: int) -> int:
    """Train all unfinished runs, list what became of each, and return the exit status."""
    nodes = list_run_nodes(runs, jobs)

    def report(node: Node) -> None:
        show(describe_node(node), error=True)
        if node.state != "running":
            ended = sum(node.state not in ("waiting", "running") for node in nodes)
            show(f"{ended} of {len(nodes)} runs have ended", error=True)

    status = run_nodes(nodes, jobs, report)
    show(list_states(nodes))
    return status if status in (0, EXIT_STOPPED) else EXIT_FAILURE


def list_states(nodes: Sequence[Node]) -> str:
    """List the runs, and count them by state."""
    counts = sorted(Counter(node.state for node in nodes).items())
    counted = ", ".join(f"{number} {state}" for state, number in counts)
    return "\n".join([*map(describe_node, nodes), f"{len(nodes)} runs: {counted}"])


def run_sweep(args: Arguments) -> int:
    """Read the command line, and run the sweep or print what was requested."""
    options, of_runs = split_options(SweepOptions, args.settings)
    runs = plan_sweep(Path(args.positional[0]), of_runs, seeds=options.seeds)
    if options.index is not None:
        if options.index >= len(runs):
            raise ConfigError(f"--index={options.index}: must be < {len(runs)}, the number of runs; lower it")
        runs = [runs[options.index]]
    if args.options.dry_run:
        nodes = list_run_nodes(runs, options.jobs)
        for node in nodes:
            if node.is_finished():
                node.state = "finished"
        show("\n".join([list_states(nodes), "", *(shlex.join(node.command) for node in nodes)]))
        return 0
    if options.index is None:
        check_copies("start one, or give each its own --index")
    # They count the processes of this command, for which lab.fit would take its own.
    for name in COPIES:
        os.environ.pop(name, None)
    return train_runs(runs, options.jobs)


SPEC = CommandSpec(
    description=__doc__,
    flags={"--dry_run": "List the runs and their commands, and train nothing."},
    missing="FILE: must be the first argument, a sweep; for instance sweeps/windows_mini.yaml",
    options=SweepOptions,
    stopped=CONTINUES,
)
main = partial(run, SPEC, run_sweep)


if __name__ == "__main__":
    start(main)
