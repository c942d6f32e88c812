"""LongRecipe as one config: the settings of its stages, resolved and checked before the first of them runs; no torch.

    tune      base, full windows of target_len tokens          -> FOLDER/tuned
    analyse   base against tuned: the impactful token types    -> FOLDER/impact
    extend    base, selected sentences, ids up to target_len   -> FOLDER/extended
    replay    extended, short windows, plain ids               -> FOLDER/replayed
    merge     base with replayed                               -> FOLDER/merged

Each of the paper's baselines extends the base in another way, and is replayed and merged as LongRecipe is:

    flt          full windows of target_len tokens             -> FOLDER/flt
    pose, rpes   other ids up to target_len                    -> FOLDER/pose
    random       sentences that are drawn without the analysis -> FOLDER/random
    unselected   samples of whole text                         -> FOLDER/unselected
    pose_replay, pose_merge, ...                               -> FOLDER/pose_replayed, FOLDER/pose_merged, ...

Source: arXiv:2409.00509, Figure 1 and sections 4.1 to 4.3; section 5.1 and Tables 2 and 3 for the baselines.
"""

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from lab.config import Experiment, StartConfig, load_experiment
from lab.config.settings import Settings, merge_layers, nest
from lab.core.errors import ConfigError, LabError
from lab.core.schema import Positive, Section, validated
from lab.core.yaml import format_yaml, part, read_yaml
from lab.data.selecting import ImpactConfig
from lab.runs.source import Source, read_source

FOLDERS = {"tune": "tuned", "analyse": "impact", "extend": "extended", "replay": "replayed", "merge": "merged"}
TRAINING = ("tune", "extend", "replay")
SKIPS: dict[str, Settings | None] = {  # of the samples that extend the base, by method
    "longrecipe": {"method": "longrecipe"},
    "flt": None,
    "pose": {"method": "pose"},
    "rpes": {"method": "rpes"},
    "random": {"method": "longrecipe", "selection": "random"},
    "unselected": {"method": "longrecipe"},
}
Method = Literal["longrecipe", "flt", "pose", "rpes", "random", "unselected"]


class Stage(NamedTuple):
    """One stage: the method it belongs to, and its kind."""

    method: str
    kind: str

    @property
    def name(self) -> str:
        return self.with_method(self.kind)

    @property
    def folder(self) -> str:
        return self.with_method(FOLDERS[self.kind])

    def with_method(self, word: str) -> str:
        """Put the method of a baseline before a word; its extension has the name of the method."""
        if self.method == "longrecipe":
            return word
        return self.method if self.kind == "extend" else f"{self.method}_{word}"


def list_stages(method: str) -> list[Stage]:
    """List the stages of a method; a baseline has an extension, a replay and a merge."""
    return [Stage(method, kind) for kind in FOLDERS if method == "longrecipe" or kind not in ("tune", "analyse")]


class MergeConfig(Section):
    """The last stage."""

    weights: tuple[float, ...] = (0.5, 0.5)
    """Weights of the base and of the replayed model, which sum to 1."""

    def rules(self) -> list[str]:
        """Reject weights of another sum."""
        total = math.fsum(self.weights)
        # A tolerance for decimals such as 0.3333333.
        if abs(total - 1) <= 1e-6:
            return []
        return [f"weights={list(self.weights)}: must sum to 1, not {total:g}; divide each by their sum"]


class RecipeConfig(Section):
    """The whole recipe; `tune`, `extend` and `replay` hold the sections of a run's config."""

    folder: str
    """Folder of all stages."""
    base: str
    """Model to extend: a run folder, a checkpoint in it, or a Hugging Face folder."""
    target_len: Positive
    """Target window T in tokens."""
    methods: tuple[Method, ...] = ("longrecipe",)
    """Ways to extend the base, each with a replay and a merge: longrecipe, or baselines of the paper."""
    common: Settings = field(default_factory=dict)
    """Settings that the training stages share."""
    tune: Settings
    """Brief training of the base; its data.window is T and its data.mode concatenated by default."""
    analyse: ImpactConfig = field(default_factory=ImpactConfig)
    """Options of eval.impact; its length defaults to T."""
    extend: Settings
    """Extension of the base; its data.window is 30% of T and its data.mode concatenated by default."""
    flt: Settings = field(default_factory=dict)
    """What differs from extend in full-length training; its data.window defaults to T."""
    replay: Settings
    """Replay of pretraining data; its data.window defaults to the base's."""
    merge: MergeConfig = field(default_factory=MergeConfig)
    """Merging of the base with the replayed model."""

    @property
    def stages(self) -> dict[str, Stage]:
        """The stages of all methods, by name, in the order they run."""
        listed = chain.from_iterable(map(list_stages, self.methods))
        return {stage.name: stage for stage in listed}

    def path(self, stage: Stage, kind: str | None = None) -> Path:
        return Path(self.folder) / stage._replace(kind=kind or stage.kind).folder

    def rules(self) -> list[str]:
        """Reject a repeated method, or none, and settings that only the recipe may set."""
        errors = []
        for name in ("common", *TRAINING, "flt"):
            settings = getattr(self, name)
            names = [*settings, *(f"run.{key}" for key in part(settings, "run"))]
            for key in ("run.name", "run.folder", "start", "skip"):
                if key in names:
                    errors.append(f"{name}.{key}: is set by the recipe; leave it out")
        if len(set(self.methods)) != len(self.methods) or not self.methods:
            errors.append(f"methods={list(self.methods)}: must name at least one method, each once; change it")
        return errors


class Resolved(NamedTuple):
    """A recipe whose training stages have been checked, and every stage's settings as plain values."""

    recipe: RecipeConfig
    experiments: dict[str, Experiment]
    settings: dict[str, Settings]


def read_recipe(path: Path, overrides: Settings) -> RecipeConfig:
    """Read a recipe and apply dotted overrides."""
    return validated(RecipeConfig, merge_layers(read_yaml(path), nest(overrides)))


def resolve_recipe(recipe: RecipeConfig) -> Resolved:
    """Resolve the settings of every stage, and check those of the training stages before any model exists.

    Raises: ConfigError with one line for every error, prefixed by its stage; CheckpointError for a wrong base.
    """
    source = read_source(Path(recipe.base), part(recipe.common, "model"), field="base=")
    experiments = resolve_training(recipe, source)
    settings = {name: experiment.to_dict() for name, experiment in experiments.items()}
    for stage in recipe.stages.values():
        if stage.kind == "analyse":
            models = {"base": recipe.base, "tuned": str(recipe.path(stage, "tune"))}
            length = recipe.analyse.length or recipe.target_len
            settings[stage.name] = {**models, **dataclasses.asdict(recipe.analyse), "length": length}
        if stage.kind == "merge":
            path = str(recipe.path(stage, "replay"))
            # The merged model keeps the positions of the replayed one. Its window is T, to which it was extended.
            # Dynamic NTK has a train_len of its own, by which it scales, and which the merge must keep.
            last = experiments[stage._replace(kind="replay").name]
            is_dynamic = last.position.frequency.method == "dynamic_ntk"
            settings[stage.name] = {
                "models": [recipe.base, path],
                "weights": list(recipe.merge.weights),
                "positions": path,
                "train_len": None if is_dynamic else recipe.target_len,
            }
    return Resolved(recipe, experiments, settings)


@contextmanager
def collecting(errors: list[str], stage: str) -> Iterator[None]:
    """Add the errors of the body to a list, prefixed by the stage."""
    try:
        yield
    except LabError as error:
        errors += [f"{stage}.{line}" for line in str(error).splitlines()]


def resolve_training(recipe: RecipeConfig, source: Source) -> dict[str, Experiment]:
    """Resolve the training stages; a replay inherits from the model that its method's extension will train."""
    experiments: dict[str, Experiment] = {}
    errors: list[str] = []
    # A replay inherits from the config of the model that it starts from, which is not trained yet. That config is
    # written to a temporary folder, and the paths of it are replaced by the real ones afterwards.
    with TemporaryDirectory() as place:
        untrained = dataclasses.replace(recipe, folder=place)
        for stage in recipe.stages.values():
            replays = stage.kind == "replay"
            start = untrained.path(stage, "extend") if replays else Path(recipe.base)
            # Without the config of its extension, which had errors, a replay has nothing to inherit from.
            if stage.kind not in TRAINING or (replays and not start.exists()):
                continue
            file = Path(place) / f"{stage.name}.yaml"
            file.write_text(format_yaml(stage_settings(recipe, stage, source, start)), encoding="utf-8")
            with collecting(errors, stage.name):
                experiment = load_experiment(file)
                untrained.path(stage).mkdir()
                (untrained.path(stage) / "config.yaml").write_text(experiment.to_yaml(), encoding="utf-8")
                if replays:
                    start = recipe.path(stage, "extend")
                experiments[stage.name] = dataclasses.replace(experiment, start=StartConfig(path=str(start)))
    if errors:
        raise ConfigError(*(error.replace(place, recipe.folder) for error in errors))
    return experiments


def stage_settings(recipe: RecipeConfig, stage: Stage, source: Source, start: Path) -> Settings:
    """Compose a training stage's settings: common ones, its own, and those that the recipe sets."""
    full = {"window": recipe.target_len, "mode": "concatenated"}
    # A sample has 30% of the target length (section 5.3).
    sample = {**full, "window": round(0.3 * recipe.target_len)}
    values: Settings = {"data": {"tune": full, "extend": sample, "replay": {"window": source.window}}[stage.kind]}
    if source.tokenizer is not None:
        # The base's file, not the copy in the folder of the model that a stage starts from: stages share shards by it.
        values["data"]["tokenizer"] = source.tokenizer
    sections = [recipe.common, getattr(recipe, stage.kind)]
    if stage == ("flt", "extend"):
        sections += [{"data": {"window": recipe.target_len}}, recipe.flt]
    # Another method of a section replaces the earlier one with all its keys.
    for settings in sections:
        values = merge_layers(values, settings)
    skip = SKIPS[stage.method]
    if stage.kind == "extend" and skip is not None:
        values["skip"] = {**skip, "target_len": recipe.target_len}
        if stage.method == "longrecipe":
            values["skip"]["selection"] = str(recipe.path(stage, "analyse"))
    own = {"run": {"name": stage.folder, "folder": recipe.folder}, "start": {"path": str(start)}}
    return merge_layers(values, own)
