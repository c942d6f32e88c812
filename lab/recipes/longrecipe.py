"""Extend a model by LongRecipe: all stages from one config, one after the other.

    python -m lab.longrecipe CONFIG [--stage.section.key=value ...] [--launcher "COMMAND"] [--dry_run]

CONFIG is a YAML file of configs/recipes/. The stages are a brief training on full windows of the target length, the
analysis of impactful tokens (eval.impact), the extension on selected sentences with ids up to the target length, a
replay of pretraining data, and the merge of base and replayed model (lab/recipes/recipe.py lists their inputs, and
those of the baselines that `methods` names):

    python -m lab.longrecipe configs/recipes/longrecipe_demo.yaml
    python -m lab.longrecipe configs/recipes/longrecipe_demo.yaml --folder=runs/other --extend.optim.lr=5e-4
    python -m lab.longrecipe configs/recipes/longrecipe_demo.yaml --methods='[pose, random]'
    python -m lab.longrecipe configs/recipes/longrecipe_80k.yaml --launcher "torchrun --nproc_per_node 8"

--launcher is the command that starts lab.fit in the training stages; left out, this Python. Every stage's settings are
checked before the first one runs, and are written to FOLDER as tune.yaml, analyse.yaml, extend.yaml, replay.yaml and
merge.yaml (pose.yaml, pose_replay.yaml and pose_merge.yaml for PoSE).

--dry_run prints the resources that each training stage needs, and runs none; it takes lab.fit --dry_run's options.

The same command continues after Ctrl-C, a kill, or a time limit, and skips finished stages. To run a stage again,
delete its folder and those of the stages after it.
Exit status: 0 done; 2 invalid input, one line per fault on stderr; 75 stopped by a signal, to be resumed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lab.command import CONTINUES, STOPPED, Syntax, Words, run, settings_lines, show
from lab.data.packing import refuse_few
from lab.data.part_of_speech import open_tagger
from lab.data.preparation import is_prepared
from lab.data.selecting import RESULT
from lab.errors import CheckpointError, ConfigError
from lab.files import read_object, write_atomic, write_json, writing
from lab.probe.curve import shown_length
from lab.recipes.recipe import Recipe, Resolved, read_recipe, resolve, unprepared
from lab.recipes.stages import STAGES, TRAINING, stages_of
from lab.schema import brief
from lab.train.changes import changes, flatten
from lab.train.folder import RunFolder

SYNTAX = Syntax(
    values=("--launcher",),
    missing="CONFIG: must be the first argument, a file of configs/recipes/; for instance longrecipe_demo.yaml",
)
KILLED = 128  # plus the number of the signal, as shells do
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
MERGING = ".merging"  # temporary folder of the merge
FORMS, WIDTHS = ("{:,.0f}", "{:.3f}", "{:.3f}", "{}"), (16, 8, 15, 18, 10)  # of the table at the end


class Stages:
    """The state of a recipe's folder: stages.json, a record for each started stage."""

    def __init__(self, resolved: Resolved) -> None:
        self.resolved, self.recipe = resolved, resolved.recipe
        self.folder = Path(resolved.recipe.folder)
        self.path = self.folder / "stages.json"
        self.records: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            self.records = self.read()

    def read(self) -> dict[str, dict[str, Any]]:
        """Read the record of each stage.

        Raises: CheckpointError for a damaged file, or one of another shape.
        """
        remedy = "restore it, or delete it to run the stages again"
        found = read_object(self.path, CheckpointError, remedy)
        for stage, record in found.items():
            seconds = record.get("seconds", 0.0) if isinstance(record, dict) else None
            if stage not in STAGES or not isinstance(seconds, int | float):
                raise CheckpointError(f"{self.path}: {brief(stage)} is not the record of a stage; {remedy}")
        return found

    def is_done(self, stage: str) -> bool:
        """Return whether a stage was finished and its output still exists."""
        return bool(self.records.get(stage, {}).get("done")) and self.recipe.path(stage).exists()

    def left(self) -> list[str]:
        """List the remaining stages: of every method, those after the last finished one."""
        left = []
        for method in self.recipe.methods:
            names = [stage.name for stage in stages_of(method)]
            done = [place for place, stage in enumerate(names) if self.is_done(stage)]
            left += names[max(done, default=-1) + 1 :]
        return left

    def file(self, stage: str) -> Path:
        """Name the file of a stage's settings."""
        return self.folder / f"{stage}.yaml"

    def refuse_changes(self) -> None:
        """Refuse settings that differ from those of a finished stage.

        Raises: ConfigError with a line for each.
        """
        left = self.left()
        finished = [stage for stage in self.recipe.stages if stage not in left and self.file(stage).exists()]
        files = {stage: yaml.safe_load(self.file(stage).read_text(encoding="utf-8")) for stage in finished}
        faults = [
            f"{stage}.{key}={now}: the stage is finished, with {before}; set it back, or choose another folder"
            for stage, old in files.items()
            for key, before, now in changes(old, plain(self.resolved.settings[stage]))
            if key in flatten(old)  # its version may have lacked a setting
        ]
        if faults:
            raise ConfigError(*faults)

    def write_settings(self) -> None:
        """Write the settings of the stages that are left.

        Raises: ConfigError where the folder cannot be written.
        """
        with writing(f"folder={self.folder}", "folder"):
            for stage in self.left():
                text = yaml.safe_dump(self.resolved.settings[stage], sort_keys=False, allow_unicode=True)
                write_atomic(self.file(stage), text.encode("utf-8"))

    def note(self, stage: str, seconds: float, done: bool) -> None:
        """Record that a stage has run."""
        before = self.records.get(stage, {}).get("seconds", 0.0)
        self.records[stage] = {"done": done, "seconds": round(before + seconds, 1)}
        write_json(self.path, self.records)


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as they read back from YAML."""
    read: dict[str, Any] = yaml.safe_load(yaml.safe_dump(settings))
    return read


def words_of(stages: Stages, stage: str, launcher: Sequence[str]) -> list[str]:
    """Build the command line of a stage."""
    recipe, settings = stages.recipe, stages.resolved.settings[stage]
    kind = recipe.stages[stage].kind
    if kind in TRAINING:
        return [*launcher, "-m", "lab.fit", str(stages.file(stage)), "--resume"]
    if kind == "analyse":
        options = {key: value for key, value in settings.items() if key not in ("base", "tuned") and value is not None}
        words = [f"--{key}={json.dumps(value)}" for key, value in options.items()]
        folder = str(recipe.path(stage))
        return [sys.executable, "-m", "eval.impact", settings["base"], settings["tuned"], "-o", folder, *words]
    words = [*settings["models"], "-o", str(stages.folder / MERGING)]
    words += ["--positions", settings["positions"]] if settings["positions"] else []
    words += ["--train_len", str(settings["train_len"])] if settings["train_len"] else []
    return [sys.executable, "-m", "lab.merge", *words, "--weights", *map(str, settings["weights"])]


class Child:
    """Runs commands one at a time and forwards signals to all of their processes, as a terminal does."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.signal: int | None = None

    def forward(self, number: int, frame: Any) -> None:
        """Record a signal and send it to the current command."""
        self.signal = number
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def run(self, words: Sequence[str]) -> int:
        """Run a command to its end and return its exit status.

        Raises: ConfigError for a launcher that is missing.
        """
        try:
            self.process = subprocess.Popen(words, process_group=0)
        except OSError as error:
            raise ConfigError(f"--launcher={words[0]}: cannot be started ({error.strerror}); name another") from error
        if self.signal is not None:  # received before the process was started
            os.killpg(self.process.pid, self.signal)
        return self.process.wait()


def refuse_analysis(recipe: Recipe, resolved: Resolved) -> None:
    """Check the requirements of the analysis before the first training.

    Raises: LabError.
    """
    options, data = recipe.analyse, resolved.experiments["tune"].data
    if options.tagger is not None:
        open_tagger(options.tagger)
    if options.text is None and is_prepared(data):
        refuse_few(data, length=resolved.settings["analyse"]["length"], windows=options.windows)


def run_stages(stages: Stages, launcher: Sequence[str]) -> int:
    """Run the remaining stages; return 0, or the exit status of the first that does not finish.

    Raises: LabError.
    """
    child = Child()
    previous = {number: signal.signal(number, child.forward) for number in SIGNALS}
    try:
        for stage in stages.left():
            show(f"\n{stage} -> {stages.recipe.path(stage)}")
            start, merges = time.monotonic(), stages.recipe.stages[stage].kind == "merge"
            if merges:
                shutil.rmtree(stages.folder / MERGING, ignore_errors=True)
            status = child.run(words_of(stages, stage, launcher))
            if status == 0 and merges:
                shutil.rmtree(
                    stages.recipe.path(stage), ignore_errors=True
                )  # one that was merged earlier is out of date
                (stages.folder / MERGING).rename(stages.recipe.path(stage))
            stages.note(stage, time.monotonic() - start, done=status == 0)
            if child.signal is not None and (status != 0 or stages.left()):
                return STOPPED
            if status != 0:
                return status if status > 0 else KILLED - status
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return 0


def report(stages: Stages) -> str:
    """Format a table of the results of every stage."""
    rows: list[tuple[str, ...]] = [("stage", "tokens", "loss", "held-out loss", "effective length", "seconds")]
    for stage, about in stages.recipe.stages.items():
        numbers = numbers_of(about.kind, stages.recipe.path(stage))
        shown = ["-" if x is None else form.format(x) for x, form in zip(numbers, FORMS, strict=True)]
        rows.append((stage, *shown, f"{stages.records.get(stage, {}).get('seconds', 0.0):,.0f}"))
    width = max(len(stage) for stage in stages.recipe.stages) + 1
    lines = [f"{row[0]:<{width}}" + "".join(f"{cell:>{width}}" for cell, width in zip(row[1:], WIDTHS)) for row in rows]
    places = ["folder", *(str(stages.recipe.path(stage)) for stage in stages.recipe.stages)]
    return "\n".join(["", *(f"{line}  {place}" for line, place in zip(lines, places, strict=True))])


def numbers_of(kind: str, folder: Path) -> tuple[float | str | None, ...]:
    """Read the results of a stage of a kind: tokens, loss of the last steps, held-out loss, effective length."""
    if kind in TRAINING:
        run = RunFolder(folder)
        steps = list(run.read("metrics.jsonl"))
        probes = list(run.probes())
        last, probe = steps[-1] if steps else {}, probes[-1] if probes else {}
        length = shown_length(probe["effective_length"], probe.get("first_length")) if probe else None
        return *map(last.get, ("consumed_tokens", "loss")), probe.get("held_out_loss"), length
    if kind == "analyse" and (folder / RESULT).exists():
        options = json.loads((folder / RESULT).read_text(encoding="utf-8"))["options"]
        return options["windows"] * options["length"], None, None, None
    return None, None, None, None


def carry_out(words: Words, arguments: Sequence[str]) -> int:
    """Run the remaining stages of a recipe, report, and return the exit status.

    Raises: LabError.
    """
    launcher = [sys.executable] if words.options.launcher is None else shlex.split(words.options.launcher)
    if not launcher:
        raise ConfigError("--launcher: must be a command; for instance 'torchrun --nproc_per_node 8'")
    recipe = read_recipe(Path(words.places[0]), words.settings)
    stages = Stages(resolve(recipe))
    stages.refuse_changes()
    stages.write_settings()
    if faults := unprepared(stages.resolved):
        raise ConfigError(*faults)
    if "analyse" in stages.left():
        refuse_analysis(recipe, stages.resolved)
    status = run_stages(stages, launcher)
    if status == 0:
        show(report(stages))
    elif status == STOPPED:
        again = shlex.join(["python", "-m", "lab.longrecipe", *arguments])
        show(f"the recipe was stopped, finished stages are saved; continue with:\n  {again}", error=True)
    return status


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    heading = "Settings (default; meaning), those of the training stages as in lab.fit --help=all:"
    return run(
        __doc__,
        arguments,
        lambda words: carry_out(words, arguments),
        syntax=SYNTAX,
        settings=lambda: [heading, "", *settings_lines(Recipe)],
        stopped=CONTINUES,
    )
