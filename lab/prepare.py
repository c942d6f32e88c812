"""Tokenize a config's corpus to shards, ready for training.

    probe-lab prepare CONFIG [--section.key=value ...] [--workers N] [--task I/N]

    probe-lab prepare configs/tiny_2k.yaml --workers 32
    probe-lab prepare configs/tiny_2k.yaml --task 3/64
    sbatch --array=0-63 --wrap='probe-lab prepare CONFIG --task=$SLURM_ARRAY_TASK_ID/64'

Finished tasks are skipped, so that the same command continues after an interruption. With data.upsample (long documents
more often) the corpus is prepared first, once for all such settings, and further shards are derived from it. Documents
and tokens of each source before and after are printed, and written to upsampling.json in the shards' folder.
"""

import json
from functools import partial
from pathlib import Path

from lab.config import load_experiment
from lab.core.arguments import settings_lines, split_options
from lab.core.command import Arguments, CommandSpec, run, start
from lab.core.errors import ConfigError
from lab.core.launch import cores
from lab.core.schema import Positive, Section
from lab.data.config import DataConfig
from lab.data.derivation import RECORD
from lab.data.preparation import is_prepared, prepare, shard_folder


class PrepareOptions(Section):
    """Options of the command, in addition to the settings of the data."""

    workers: Positive | None = None
    """Processes that tokenize; default: the cores of this machine."""
    task: str = "0/1"
    """Share of the tasks to finish: I/N is every Nth task from number I on."""


SPEC = CommandSpec(
    description=__doc__,
    missing="CONFIG: must be the first argument, a YAML file; for instance configs/cpu_stdlib.yaml",
    options=PrepareOptions,
    settings=partial(settings_lines, DataConfig, prefix="data."),
    stopped="interrupted; finished tasks are kept, run the same command to continue",
)


def prepare_config(args: Arguments) -> str:
    """Prepare, and return a summary."""
    options, overrides = split_options(PrepareOptions, args.settings)
    first, _, stride = options.task.partition("/")
    if not (first.isdigit() and stride.isdigit() and int(first) < int(stride)):
        raise ConfigError(f"--task={options.task}: must be I/N with 0 <= I < N; for instance 0/64")
    data = load_experiment(Path(args.positional[0]), overrides).data
    tasks = slice(int(first), None, int(stride))
    summaries = []
    for part in data.parts:
        summary = prepare(part, workers=options.workers or cores(), tasks=tasks).summary
        if part.upsample is not None and not is_prepared(part):
            summary += "; some shards are missing, run it again for all tasks"
        elif part.upsample is not None:
            import pandas as pd  # not at the top: its import takes longer than reading a config

            rows = json.loads((shard_folder(part) / RECORD).read_text("utf-8"))["sources"]
            summary += f"\n\n{pd.DataFrame(rows).to_string(index=False, float_format='{:.3f}'.format)}"
        summaries.append(summary)
    return "\n".join(summaries)


main = partial(run, SPEC, prepare_config)


if __name__ == "__main__":
    start(main)
