"""Extend a model by LongRecipe: all stages from one config, one after the other.

    python -m lab.longrecipe CONFIG [--stage.section.key=value ...] [--launcher "COMMAND"] [--dry_run]

CONFIG is a YAML file of configs/recipes/. The stages are a brief training on full windows of the target length, the
analysis of impactful tokens (eval.impact), the extension on selected sentences with ids up to the target length, a
replay of pretraining data, and the merge of base and replayed model (lab/recipes.py lists their inputs, and
those of the baselines that `methods` names):

    python -m lab.longrecipe configs/recipes/longrecipe_demo.yaml
    python -m lab.longrecipe configs/recipes/longrecipe_demo.yaml --folder=runs/other --extend.optim.lr=5e-4
    python -m lab.longrecipe configs/recipes/longrecipe_demo.yaml --methods='[pose, random]'
    python -m lab.longrecipe configs/recipes/longrecipe_80k.yaml --launcher "torchrun --nproc_per_node 8"

--launcher is the command that starts lab.fit in the training stages; left out, this Python. Every stage's settings are
checked before the first one runs, and are written to FOLDER as tune.yaml, analyse.yaml, extend.yaml, replay.yaml and
merge.yaml (pose.yaml, pose_replay.yaml and pose_merge.yaml for PoSE).

--dry_run prints the resources that each training stage needs, and runs none; --memory_gib goes with it as in lab.fit.

The same command continues after Ctrl-C, a kill, or a time limit, and skips finished stages. To run a stage again,
delete its folder and those of the stages after it.
Exit status: 0 done; 2 invalid input, one line per fault on stderr; 75 stopped by a signal, to be resumed.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.command import CONTINUES, STOPPED, Words, run, settings_lines, show
from lab.config import Experiment
from lab.data.preparation import is_prepared, shard_folder
from lab.errors import CheckpointError, ConfigError
from lab.files import read_object, write_atomic, write_json, writing
from lab.jobs import Job, run_jobs
from lab.recipes import SYNTAX, TRAINING, Recipe, Resolved, Stage, collecting, read_recipe, resolve, stages_of
from lab.schema import format_yaml, parse_yaml
from lab.train.arms import changes

RECORDS = "stages.json"  # whether each started stage is done, and its seconds
Records = dict[str, dict[str, Any]]


def read_records(folder: Path) -> Records:
    """Read the record of each started stage.

    Raises: CheckpointError for a damaged file, or one of another shape.
    """
    path, remedy = folder / RECORDS, "restore it, or delete it to run the stages again"
    found = read_object(path, CheckpointError, remedy) if path.exists() else {}
    for stage, record in found.items():
        if not isinstance(record, dict) or not isinstance(record.get("seconds"), int | float):
            raise CheckpointError(f"{path}: {stage} is not the record of a stage; {remedy}")
    return found


def stages_left(recipe: Recipe, records: Records) -> list[Stage]:
    """List the remaining stages: of every method, those after the last one that is done and still exists."""
    left = []
    for stages in map(stages_of, recipe.methods):
        done = [name for name, record in records.items() if record.get("done")]
        ends = [n for n, stage in enumerate(stages, 1) if stage.name in done and recipe.path(stage).exists()]
        left += stages[max(ends, default=0) :]
    return left


def write_settings(resolved: Resolved, left: Sequence[Stage]) -> None:
    """Write the settings of the stages that are left; those of finished ones, and their corpora, are checked first.

    Raises: ConfigError with a line for each setting that differs from that of a finished stage, and for each corpus
        that must be prepared first.
    """
    faults, folder = [], Path(resolved.recipe.folder)
    for name, stage in resolved.recipe.stages.items():
        file = folder / f"{name}.yaml"
        if stage not in left and file.exists():
            old, now = parse_yaml(file.read_text(encoding="utf-8"), str(file)), format_yaml(resolved.settings[name])
            faults += [
                f"{name}.{key}={new}: the stage is finished, with {before}; set it back, or choose another folder"
                for key, before, new in changes(old, parse_yaml(now, str(file)))
            ]
    if faults:
        raise ConfigError(*faults)
    with writing(f"folder={folder}", "folder"):
        for stage in left:
            text = format_yaml(resolved.settings[stage.name])
            write_atomic(folder / f"{stage.name}.yaml", text.encode("utf-8"))
    for name, data in ((name, experiment.data) for name, experiment in resolved.experiments.items()):
        if not (data.embedded or is_prepared(data)):
            remedy = f"run python -m lab.prepare {folder / f'{name}.yaml'} first"
            faults.append(f"{name}.data.corpus.name={data.corpus.name}: not prepared in {shard_folder(data)}; {remedy}")
    if faults:
        raise ConfigError(*faults)


def job_of(resolved: Resolved, stage: Stage, launcher: Sequence[str]) -> Job:
    """Build the command of a stage."""
    settings, folder = resolved.settings[stage.name], str(resolved.recipe.path(stage))
    if stage.kind in TRAINING:
        file = str(Path(resolved.recipe.folder) / f"{stage.name}.yaml")
        return Job(stage.name, [*launcher, "-m", "lab.fit", file, "--resume"])
    if stage.kind == "analyse":
        given = {key: value for key, value in settings.items() if key not in ("base", "tuned") and value is not None}
        words = [settings["base"], settings["tuned"], *(f"--{key}={json.dumps(value)}" for key, value in given.items())]
    else:
        words = [*settings["models"], "--weights", *map(str, settings["weights"])]
        words += ["--positions", settings["positions"]]
        words += ["--train_len", str(settings["train_len"])] if settings["train_len"] else []
    module = "eval.impact" if stage.kind == "analyse" else "lab.merge"
    return Job(stage.name, [sys.executable, "-m", module, *words, "-o", folder])


def run_stages(recipe: Recipe, jobs: Sequence[Job], records: Records) -> int:
    """Run the stages that are left; return 0, or the exit status of the first that does not finish.

    Raises: ConfigError for a launcher that is missing.
    """
    began = time.monotonic()

    def note(job: Job, status: int) -> None:
        nonlocal began
        seconds = records.get(job.name, {}).get("seconds", 0.0) + time.monotonic() - began
        records[job.name] = {"done": status == 0, "seconds": round(seconds, 1)}
        write_json(Path(recipe.folder) / RECORDS, records)
        began = time.monotonic()

    return run_jobs(jobs, on_end=note)


def carry_out(words: Words, arguments: Sequence[str]) -> int:
    """Run the remaining stages of a recipe, report, and return the exit status.

    Raises: LabError.
    """
    launcher = [sys.executable] if words.options.launcher is None else shlex.split(words.options.launcher)
    if not launcher:
        raise ConfigError("--launcher: must be a command; for instance 'torchrun --nproc_per_node 8'")
    recipe = read_recipe(Path(words.places[0]), words.settings)
    resolved, records = resolve(recipe), read_records(Path(recipe.folder))
    left = stages_left(recipe, records)
    write_settings(resolved, left)
    for stage in left:
        show(f"{stage.name} -> {recipe.path(stage)}")
        if stage.kind == "merge":  # one that was merged earlier is out of date, one that was interrupted incomplete
            shutil.rmtree(recipe.path(stage), ignore_errors=True)
    status = run_stages(recipe, [job_of(resolved, stage, launcher) for stage in left], records)
    if status == 0:
        seconds = sum(record["seconds"] for record in records.values())
        show(f"{recipe.folder}: all stages are done, in {seconds:,.0f} s; {len(left)} of them now")
    elif status == STOPPED:
        again = shlex.join(["python", "-m", "lab.longrecipe", *arguments])
        show(f"the recipe was stopped, finished stages are saved; continue with:\n  {again}", error=True)
    return status


def dry_run(words: Words, estimate: Callable[[Experiment, str | None], str]) -> str:
    """Estimate the resources of each training stage.

    Raises: LabError, a line for each stage that does not fit.
    """
    found = []
    faults: list[str] = []
    for name, experiment in resolve(read_recipe(Path(words.places[0]), words.settings)).experiments.items():
        with collecting(faults, name):
            found.append(estimate(experiment, words.options.memory_gib))
    if faults:
        raise ConfigError(*faults)
    return "\n\n\n".join(found)


def main(arguments: Sequence[str], work: Callable[[Words], str | int] | None = None) -> int:
    """Run the command line and return the exit status."""
    heading = "Settings (default; meaning), those of the training stages as in lab.fit --help=all:"
    return run(
        __doc__,
        arguments,
        work or (lambda words: carry_out(words, arguments)),
        syntax=SYNTAX,
        settings=lambda: [heading, "", *settings_lines(Recipe)],
        stopped=CONTINUES,
    )


if __name__ == "__main__":

    def choose(words: Words) -> str | int:
        """Run the recipe, or estimate its resources, which loads torch."""
        if not words.options.dry_run:
            return carry_out(words, sys.argv[1:])
        from lab.estimate import estimate

        return dry_run(words, estimate)

    raise SystemExit(main(sys.argv[1:], choose))
