"""Trained weights by path: a run folder, a checkpoint in it, a Hugging Face folder, or an id of its hub; no torch.

hf:OWNER/NAME or hf:OWNER/NAME@REVISION is read from the network, else
from the hub's cache.
"""

import dataclasses
import difflib
import fnmatch
import functools
import glob
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path

from lab.core.errors import CheckpointError, ConfigError, abbreviate, first_line
from lab.core.yaml import Settings, flatten, part, read_yaml
from lab.model.config import DecoderConfig
from lab.model.huggingface import config as folders
from lab.model.huggingface.rope import frequency_settings
from lab.runs.checkpoints import NAME as CHECKPOINT_NAME

CONFIG = "config.yaml"
EXPERIMENT = "experiment.yaml"  # of a run, in the folder that lab.export wrote
TOKENIZER = "tokenizer.json"
PLACES = "a run folder, a checkpoint in it, or a Hugging Face folder"
FIELD = "start.path="
HUB = "hf:"
ARCHITECTURE = [*DecoderConfig.__dataclass_fields__]
DEFAULTS = {item.name: item.default for item in dataclasses.fields(DecoderConfig) if item.default is not MISSING}
FREE = ("theta", "embedding_std", "layers")  # settings of the model that are not part of its architecture
REMOVED = {  # by the last commit that has them: settings of earlier runs on which their results depend
    "0385f271": "model.norm=post model.norm=sandwich model.gate=True model.softmax.method=scalable "
    "model.softmax.method=temperature model.softmax.method=sink weights.by=context weights.control=loss "
    "evidence.method=gain data.corpus.name=mqar",
    "806a6455": "weights.control=kind evidence.method=asked evidence.method=suffix",
    "22fd915b": "data.schedule.start",
    "fbd5e937": "position.frequency.method=longrope",
}


@dataclass(frozen=True)
class Place:
    """A folder with weights; `home` has its config and tokenizer: a checkpoint's run folder, else the folder itself."""

    folder: Path
    home: Path
    is_hugging_face: bool


@dataclass(frozen=True)
class Source:
    """Raw settings of a trained model; `window` is its training window where known."""

    model: Settings
    position: Settings
    tokenizer: Settings | None
    window: int | None


def find_place(path: Path, field: str = "") -> Place:
    """Find the folders of trained weights, and reject a folder of another type; errors name `field` before the path."""
    is_gguf = path.suffix == ".gguf" and path.is_file()
    if not is_gguf and not is_hub_id(path) and not os.path.isdir(path):
        raise CheckpointError(f"{field}{abbreviate(path)}: {no_folder(path)}")
    folder = resolve_path(path)
    home = find_home(path)
    is_hugging_face = (folder / folders.NAME).is_file()
    is_run = home != folder or (folder / CONFIG).is_file() or (folder / "checkpoints").is_dir()
    if not is_run and (is_gguf or (folder / folders.ADAPTER).is_file() or any(folder.glob("*.gguf"))):
        raise CheckpointError(f"{field}{path}: is no model in safetensors; {folders.conversion(folder)}")
    if not (is_hugging_face or is_run):
        raise CheckpointError(f"{field}{path}: holds neither a run nor a {folders.NAME}; use {PLACES}")
    return Place(folder, home, is_hugging_face)


def no_folder(path: Path) -> str:
    """Describe what to do about a folder that does not exist.

    Example:
        >>> no_folder(Path("models/step_*"))
        'matches no folder; use a run folder, a checkpoint in it, or a Hugging Face folder'
    """
    if glob.has_magic(str(path)):
        return f"matches no folder; use {PLACES}"
    runs = {run.name: run for run in [*path.parent.glob("*/"), *Path("runs").glob("*/")]}
    for name in difflib.get_close_matches(path.name, runs, n=1):
        return f"no such folder; did you mean {runs[name]}?"
    return f"no such folder; use {PLACES}"


def resolve_path(path: Path) -> Path:
    """Resolve a path whose name is not the folder's: `.`, `..`, a link, or an id of the Hugging Face hub."""
    if is_hub_id(path):
        return hub_folder(path)
    if path.name in ("", "..") or path.is_symlink():
        return path.resolve()
    return path


def find_home(path: Path) -> Path:
    """Return the folder of the config and the tokenizer, existing or not."""
    folder = resolve_path(path)
    return folder.parent.parent if CHECKPOINT_NAME.fullmatch(folder.name) else folder


def find_tokenizer(path: Path) -> Path | None:
    file = find_home(path) / TOKENIZER
    return file if file.is_file() else None


def is_hub_id(path: Path) -> bool:
    """Return whether a model is named by its id on the hub.

    Example:
        >>> is_hub_id(Path("hf:allenai/OLMo-2-0425-1B@main")), is_hub_id(Path("runs/cpu_demo"))
        (True, False)
    """
    return str(path).startswith(HUB)


@functools.cache
def hub_folder(path: Path) -> Path:
    """Return the folder of a model of the hub, downloaded unless it is in the cache, rejecting one that neither has."""
    from huggingface_hub import snapshot_download

    name, _, revision = str(path).removeprefix(HUB).partition("@")
    try:
        return Path(
            snapshot_download(name, revision=revision or None, allow_patterns=["*.json", "*.safetensors", "*.jinja"])
        )
    except (OSError, ValueError) as error:
        if os.path.isdir(name):
            raise CheckpointError(f"{path}: {name} is a folder here; write it without {HUB}") from error
        raise CheckpointError(
            f"{path}: not in the cache, and not available ({first_line(error)}); download it, or use a folder "
            "(docs/install.md)"
        ) from error


def revisions(word: str) -> list[str]:
    """List the ids of the branches and tags that match hf:OWNER/NAME@PATTERN: the hub's, else those in the cache."""
    from huggingface_hub import HfApi, constants, scan_cache_dir

    name, _, pattern = word.removeprefix(HUB).partition("@")
    try:
        listed = HfApi().list_repo_refs(name)
        names = [ref.name for ref in (*listed.branches, *listed.tags)]
    except (OSError, ValueError):
        names = []
        if Path(constants.HF_HUB_CACHE).is_dir():
            for repo in scan_cache_dir(constants.HF_HUB_CACHE).repos:
                if repo.repo_id == name:
                    names += repo.refs
    return [f"{HUB}{name}@{revision}" for revision in fnmatch.filter(names, pattern)]


def read_source(
    path: Path, stated: Mapping[str, object] = {}, *, own_frequencies: bool = False, field: str = FIELD
) -> Source:
    """Read architecture, positions and tokenizer of trained weights; `own_frequencies` replace a Hugging Face folder's.

    An absent model has the architecture that is `stated`, which is enough for a dry run.

    Raises: CheckpointError for a folder of another type, ConfigError for a model of another type or a broken config.
    """
    if not is_hub_id(path) and not os.path.isdir(path):
        model = {**DEFAULTS, **stated}
        missing = ", ".join(f"model.{name}" for name in ARCHITECTURE if name not in model)
        if missing:
            raise CheckpointError(f"{field}{abbreviate(path)}: {no_folder(path)}; for --dry_run set {missing}")
        return Source(model, {"frequency": {"method": "rope"}}, tokenizer_settings(path / TOKENIZER, "<eos>"), None)
    place = find_place(path, field)
    tokenizer: Settings | None = None
    if not place.is_hugging_face:
        values = read_run_config(place.home / CONFIG)
        data = part(values, "data")
        tokenizer = tokenizer_settings(place.home / TOKENIZER, part(data, "tokenizer").get("eos", "<eos>"))
        return Source(part(values, "model"), part(values, "position"), tokenizer, data.get("window"))
    settings = folders.read_decoder_settings(place.folder)
    model = dataclasses.asdict(folders.decoder_config(settings, own_frequencies=own_frequencies))
    position = {} if own_frequencies else {"frequency": frequency_settings(settings)}
    eos = folders.token_text(folders.read_json(place.folder / "tokenizer_config.json").get("eos_token"))
    file = find_tokenizer(place.folder)
    # A tokenizer.json does not say which of its tokens ends a document.
    if file and eos is not None:
        tokenizer = tokenizer_settings(file, eos)
    return Source(model, position, tokenizer, settings["max_position_embeddings"])


def read_run_config(path: Path) -> Settings:
    """Read the config.yaml of a run, which an earlier version of the lab may have written.

    Raises: ConfigError for a run that depends on a setting that was removed.
    """
    values = read_yaml(path)
    # Runs of earlier versions state settings that no longer exist, mostly at values that changed nothing.
    without_effect = {"model.norm": "pre", "model.gate": False, "model.softmax": None, "data.schedule": None}
    for dotted, value in without_effect.items():
        section, _, name = dotted.partition(".")
        stated = part(values, section)
        if stated.get(name, ...) == value:
            del stated[name]
    for name, value in flatten(values).items():
        for commit, removed in REMOVED.items():
            if not {name, f"{name}={value}"}.isdisjoint(removed.split()):
                raise ConfigError(f"{path}: {name}={value}: was removed from the lab; open the run at commit {commit}")
    return values


def tokenizer_settings(file: Path, eos: str) -> Settings:
    return {"method": "file", "path": str(file), "eos": eos}
