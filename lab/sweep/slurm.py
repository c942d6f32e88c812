"""A sweep as an array of SLURM jobs: the script for sbatch, and the task of one run."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.command import STOPPED, show
from lab.errors import ConfigError
from lab.launch import read_launch
from lab.lock import NAME, is_held
from lab.sweep.children import prepare_once
from lab.sweep.planning import Run

SCRIPT = """\
#!/usr/bin/env bash
# Each task trains one run of {file}; options on sbatch's command line replace those below.
# When submitted again, tasks of finished runs exit at once and the others resume.
#SBATCH --job-name={name}
#SBATCH --array=0-{last}{limit}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={devices}
#SBATCH --cpus-per-task={threads}
{gpus}#SBATCH --signal=USR1@600
#SBATCH --open-mode=append
set -euo pipefail
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \\
    {command} --index="$SLURM_ARRAY_TASK_ID"
"""


def script(file: Path, runs: Sequence[Run], words: Sequence[str], jobs: int | None) -> str:
    """Write the script of an array that trains every run, at most `jobs` at once where that is given.

    Raises: ConfigError where the runs need different machines.
    """
    trains = [run.experiment.train for run in runs]
    first = trains[0]
    for field in ("devices", "nodes", "threads", "accelerator"):
        values = {getattr(train, field) for train in trains}
        if len(values) > 1:
            raise ConfigError(f"train.{field}={values}: differs between runs, which one array cannot; use two files")
    return SCRIPT.format(
        file=file,
        name=file.stem,
        last=len(runs) - 1,
        limit=f"%{jobs}" if jobs else "",
        nodes=first.nodes,
        devices=first.devices,
        threads=first.threads or 1,
        gpus="" if first.accelerator == "cpu" else f"#SBATCH --gpus-per-node={first.devices}\n",
        command=shlex.join([sys.executable, "-m", "lab.sweep", *words]),
    )


def become(run: Run) -> int:
    """Replace this process by that of one run, to which signals go; return a status only if there is nothing to run.

    Of several tasks the first prepares its data.

    Raises: LabError.
    """
    if run.is_finished():
        show(f"{run.path}: already finished")
        return 0
    if read_launch(os.environ).is_first:
        prepare_once(run)
        if is_held(run.path / NAME):
            show(f"{run.path}: is being run by another process", error=True)
            return STOPPED
    words = run.words()
    return os.execvpe(words[0], words, {"OMP_WAIT_POLICY": "PASSIVE", **os.environ})
