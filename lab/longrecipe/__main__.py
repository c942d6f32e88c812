"""Extend a model by LongRecipe: all stages from one config, one after the other.

    probe-lab longrecipe CONFIG [--stage.section.key=value ...] [--launcher "COMMAND"] [--dry_run]

CONFIG is a YAML file of configs/recipes/. The first stage trains the base briefly on full windows of the target length.
probe-lab impact then finds the impactful tokens. The extension trains on selected sentences with ids up to the target
length. A replay of pretraining data follows, and the merge of base and replayed model. stages.py lists the inputs of
the stages, and of the baselines that `methods` names:

    probe-lab longrecipe configs/recipes/longrecipe_demo.yaml
    probe-lab longrecipe configs/recipes/longrecipe_demo.yaml --folder=runs/other --extend.optim.lr=5e-4
    probe-lab longrecipe configs/recipes/longrecipe_demo.yaml --methods='[pose, random]'
    probe-lab longrecipe configs/recipes/longrecipe_80k.yaml --launcher "torchrun --nproc_per_node 8"

Settings of the training stages are those of fit. All are checked before the first stage runs, and written to FOLDER as
tune.yaml, analyse.yaml, extend.yaml, replay.yaml and merge.yaml (pose.yaml, pose_replay.yaml and pose_merge.yaml for
PoSE).

The same command continues after Ctrl-C, a kill, or a time limit, and skips finished stages. To run a training stage
again, delete its folder and those of the training stages after it.
"""

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import dropwhile
from pathlib import Path

from lab.core.command import CONTINUES, EXIT_STOPPED, Arguments, CommandSpec, run, show
from lab.core.errors import ConfigError
from lab.core.files import write_atomic, writing
from lab.core.launch import check_copies
from lab.core.yaml import format_yaml
from lab.data.preparation import check_prepared
from lab.longrecipe.stages import (
    TRAINING,
    RecipeConfig,
    Resolved,
    Stage,
    collecting,
    list_stages,
    read_recipe,
    resolve_recipe,
)
from lab.sweep.nodes import Node, is_trained, run_nodes

SPEC = CommandSpec(
    description=__doc__,
    flags={"--dry_run": "Print the resources that each training stage needs, and run none."},
    values={
        "--launcher": 'Command that runs "-m lab.fit" in the training stages; default: this Python.',
        "--memory_gib": "As in fit.",
        "--utilisation": "As in fit.",
    },
    missing="CONFIG: must be the first argument, a file of configs/recipes/; for instance longrecipe_demo.yaml",
    options=RecipeConfig,
    stopped=CONTINUES,
)


def is_done(resolved: Resolved, stage: Stage) -> bool:
    """Return whether a stage has finished with its settings; lab.fit rejects others for a run that has started."""
    if stage.kind in TRAINING:
        return is_trained(resolved.experiments[stage.name])
    # A result has no settings of its own: those that it was computed with are in the file that was written before.
    file = Path(resolved.recipe.folder) / f"{stage.name}.yaml"
    is_same = file.exists() and file.read_text(encoding="utf-8") == format_yaml(resolved.settings[stage.name])
    written_last = "impact.json" if stage.kind == "analyse" else "config.json"
    return is_same and (resolved.recipe.path(stage) / written_last).exists()


def write_settings(resolved: Resolved, left: Sequence[Stage]) -> None:
    """Write the settings of the stages that are left, and reject each corpus that must be prepared first."""
    folder = Path(resolved.recipe.folder)
    with writing(f"folder={folder}", "folder"):
        for stage in left:
            text = format_yaml(resolved.settings[stage.name])
            write_atomic(folder / f"{stage.name}.yaml", text.encode("utf-8"))
    errors: list[str] = []
    for name, experiment in resolved.experiments.items():
        with collecting(errors, name):
            check_prepared(experiment.data)
    if errors:
        raise ConfigError(*errors)


def list_stage_nodes(resolved: Resolved, left: Sequence[Stage], launcher: Sequence[str]) -> list[Node]:
    """List the nodes of the stages that are left, each of which needs the one before it."""
    nodes: list[Node] = []
    for stage in left:
        settings = dict(resolved.settings[stage.name])
        if stage.kind in TRAINING:
            file = Path(resolved.recipe.folder) / f"{stage.name}.yaml"
            command = [*launcher, "-m", "lab.fit", str(file), "--resume"]
        else:
            models = (
                [settings.pop("base"), settings.pop("tuned")] if stage.kind == "analyse" else settings.pop("models")
            )
            options = [f"--{key}={json.dumps(value)}" for key, value in settings.items() if value is not None]
            module = "eval.impact" if stage.kind == "analyse" else "lab.merge"
            command = [sys.executable, "-P", "-m", module, *models, *options, "-o", str(resolved.recipe.path(stage))]
        nodes.append(Node(name=stage.name, command=command, needs=nodes[-1:]))
    return nodes


def run_recipe(args: Arguments) -> int:
    """Run the remaining stages of a recipe, report, and return the exit status."""
    check_copies("start one; --launcher starts the processes of a training stage")
    launcher = shlex.split(args.options.launcher or "") or [sys.executable]
    recipe = read_recipe(Path(args.positional[0]), args.settings)
    resolved = resolve_recipe(recipe)
    left: list[Stage] = []
    for method in recipe.methods:
        # A stage reads what the one before it wrote: after one that is not done, all stages of the method run again.
        left += dropwhile(partial(is_done, resolved), list_stages(method))
    write_settings(resolved, left)
    for stage in left:
        show(f"{stage.name} -> {recipe.path(stage)}")
        # What was merged earlier is out of date, and would pass for a finished stage.
        if stage.kind == "merge":
            shutil.rmtree(recipe.path(stage), ignore_errors=True)
    status = run_nodes(list_stage_nodes(resolved, left, launcher))
    if status == 0:
        show(f"{recipe.folder}: all stages are done, {len(left)} of them now")
    elif status == EXIT_STOPPED:
        show(CONTINUES, error=True)
    return status


def dry_run(estimate: Callable[..., str], args: Arguments) -> str:
    """Estimate the resources of each training stage by lab.train.dry_run.estimate, and reject those that do not fit."""
    texts = []
    errors: list[str] = []
    for name, experiment in resolve_recipe(read_recipe(Path(args.positional[0]), args.settings)).experiments.items():
        with collecting(errors, name):
            texts.append(estimate(experiment, args.options.memory_gib, args.options.utilisation))
    if errors:
        raise ConfigError(*errors)
    return "\n\n\n".join(texts)


main = partial(run, SPEC, run_recipe)


if __name__ == "__main__":
    if "--dry_run" in sys.argv[1:]:
        from lab.train.dry_run import estimate  # loads torch, which takes seconds

        raise SystemExit(run(SPEC, partial(dry_run, estimate), sys.argv[1:]))
    raise SystemExit(main(sys.argv[1:]))
