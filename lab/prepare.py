"""Tokenize a config's corpus to shards, ready for lab.fit.

    python -m lab.prepare CONFIG [--section.key=value ...] [--workers N] [--executor local|slurm|ray] [--jobs N]
                          [--task I/N] [--verify] [--plot FILE.png]

    python -m lab.prepare configs/tiny_2k.yaml --workers 32         all tasks, 32 processes
    python -m lab.prepare configs/tiny_2k.yaml --executor ray       all tasks, on the cluster that RAY_ADDRESS names
    python -m lab.prepare configs/tiny_2k.yaml --executor slurm     all tasks, by --jobs jobs (64) of --workers cores
    python -m lab.prepare configs/tiny_2k.yaml --task 3/64          every 64th task from the 3rd on, as such a job does
    python -m lab.prepare configs/tiny_2k.yaml --verify             hash all shards against their manifests

sbatch reads partition, time limit and more from its own variables, such as SBATCH_PARTITION and SBATCH_TIMELIMIT.
Finished tasks are skipped, so that the same command continues after an interruption. With data.upsample (long documents
more often) or data.order=related the corpus is prepared first, once for all such settings, and further shards are
derived from it. Lengths and sources before and after are then printed,
written to upsampling.json in the shards' folder, and drawn by --plot:

    python -m lab.prepare configs/anchor_64k.yaml --data.upsample.share=0.7 --workers 32 --plot mixture.png

Exit status: 0 done; 2 invalid input; 75 interrupted, to be run again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.command import Syntax, Words, run, settings_lines, show, start
from lab.config import load_experiment
from lab.data.config import DataConfig
from lab.data.corpora import FilesReader, open_corpus
from lab.data.derivation import NEIGHBOURS, RECORD
from lab.data.executors import EXECUTORS, Executor, local, on_ray, on_slurm
from lab.data.mixture import tables
from lab.data.mixture_picture import draw_mixture
from lab.data.preparation import is_prepared, prepare, shard_folder, verify
from lab.errors import ConfigError

JOBS = 64
SYNTAX = Syntax(
    flags=("--verify",),
    missing="CONFIG: must be the first argument, a YAML file; for instance configs/cpu_stdlib.yaml",
)


@dataclass(frozen=True)
class Arguments:
    """The parsed command line; `share` is (first, stride) of the tasks."""

    data: DataConfig
    execute: Executor
    share: tuple[int, int] | None
    verify: bool
    plot: Path | None


def parse(words: Words) -> Arguments:
    """Read the command line.

    Raises: ConfigError.
    """
    overrides = dict(words.settings)
    task, plot = overrides.pop("task", None), overrides.pop("plot", None)
    share = read_share(task)
    if share is not None and overrides.get("executor", "local") != "local":
        raise ConfigError(
            f"--task={task}: would be ignored, --executor={overrides['executor']} runs all tasks; leave it out"
        )
    execute = executor_of(words.places[0], overrides)
    data = load_experiment(Path(words.places[0]), overrides).data
    if plot is not None and data.upsample is None:
        raise ConfigError(f"--plot={plot}: would be ignored, it draws what data.upsample changes; set data.upsample")
    return Arguments(data, execute, share, words.options.verify, None if plot is None else Path(str(plot)))


def executor_of(config: str, overrides: dict[str, Any]) -> Executor:
    """Take what concerns the executor from the settings, and build it.

    Raises: ConfigError, MissingPackage.
    """
    name, jobs = overrides.pop("executor", "local"), overrides.pop("jobs", None)
    workers = overrides.pop("workers", len(os.sched_getaffinity(0)))
    for option, number in (("workers", workers), ("jobs", JOBS if jobs is None else jobs)):
        if not isinstance(number, int) or number < 1:
            raise ConfigError(f"--{option}={number}: must be a whole number >= 1; leave it out for the default")
    if name not in EXECUTORS:
        raise ConfigError(f"--executor={name}: no such executor; use one of {', '.join(EXECUTORS)}")
    if name != "slurm" and jobs is not None:
        raise ConfigError(f"--jobs={jobs}: would be ignored, it is the size of a job array; add --executor=slurm")
    if name == "slurm":
        settings = [f"--{setting}={json.dumps(value)}" for setting, value in overrides.items()]
        return on_slurm([config, *settings], jobs or JOBS, workers)
    return on_ray() if name == "ray" else local(workers)


def read_share(text: object) -> tuple[int, int] | None:
    """Read I/N, I from 0 to N - 1.

    Raises: ConfigError.
    """
    if text is None:
        return None
    first, _, stride = str(text).partition("/")
    if not (first.isdigit() and stride.isdigit() and int(first) < int(stride)):
        raise ConfigError(f"--task={text}: must be I/N with 0 <= I < N; for instance 0/64")
    return int(first), int(stride)


def carry_out(asked: Arguments) -> str:
    """Prepare or verify, and return a summary.

    Raises: LabError.
    """
    tasks = None
    if asked.share is not None:
        first, stride = asked.share
        tasks = range(first, open_corpus(asked.data).n_tasks, stride)
    if getattr(asked.data.corpus, "path", None) is not None and not is_prepared(asked.data):
        reader = open_corpus(asked.data)
        for line in reader.notes() if isinstance(reader, FilesReader) else ():
            show(f"note: {line}", error=True)
    summary = prepare(asked.data, tasks=tasks, execute=asked.execute).summary
    if asked.verify:
        verify(asked.data)
        summary += "; all hashes match"
    if asked.data.base is None:
        return summary
    if not is_prepared(asked.data):
        return f"{summary}; some shards are missing, run it again for all tasks"
    return "\n\n".join([summary, *derived(asked)])


def derived(asked: Arguments) -> list[str]:
    """Report lengths, sources and neighbours before and after, and draw the lengths and sources.

    Raises: LabError.
    """
    folder, parts = shard_folder(asked.data), []
    if asked.data.upsample is not None:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        parts.append(tables(record))
        if asked.plot is not None:
            draw_mixture(record, asked.plot)
            parts.append(f"picture: {asked.plot}")
    if asked.data.order == "related":
        found = json.loads((folder / NEIGHBOURS).read_text(encoding="utf-8"))
        parts.append(f"similarity of neighbours: {found['before']:.3f} -> {found['after']:.3f}")
    return parts


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run(
        __doc__,
        arguments,
        lambda words: carry_out(parse(words)),
        syntax=SYNTAX,
        settings=lambda: [
            "Settings of the corpus (default; meaning):",
            "",
            *settings_lines(DataConfig, prefix="data."),
        ],
        stopped="interrupted; finished tasks are kept, run the same command to continue",
    )


if __name__ == "__main__":
    start(main)
