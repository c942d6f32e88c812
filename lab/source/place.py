"""Locate trained weights by path: a run folder, a checkpoint in it, or a Hugging Face folder; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab.errors import CheckpointError, brief
from lab.model.huggingface.config import NAME as HUGGING_FACE
from lab.schema import is_short
from lab.source.hub import hub_folder, is_hub_id
from lab.train.checkpoints import NAME as CHECKPOINT_NAME

CONFIG, TOKENIZER = "config.yaml", "tokenizer.json"
PLACES = "a run folder, a checkpoint in it, or a Hugging Face folder"


@dataclass(frozen=True)
class Place:
    """An existing folder with weights.

    `home` holds the config and the tokenizer: for a checkpoint its run folder, else the folder itself.
    """

    folder: Path
    home: Path
    is_hugging_face: bool


def find_place(path: Path, field: str = "") -> Place:
    """Identify the kind of a folder; error lines name `field` before the path.

    Raises: CheckpointError for a folder that is missing or none of the three.
    """
    if not is_short(path):
        raise CheckpointError(f"{field}{brief(path)}: too long for a path; use {PLACES}")
    folder, home = named(path), home_of(path)
    if not folder.is_dir():
        raise CheckpointError(f"{field}{path}: no such folder; use {PLACES}")
    is_hugging_face = (folder / HUGGING_FACE).is_file()
    is_run = home != folder or (folder / CONFIG).is_file() or (folder / "checkpoints").is_dir()
    if not (is_hugging_face or is_run):
        raise CheckpointError(f"{field}{path}: holds neither a run nor a {HUGGING_FACE}; use {PLACES}")
    return Place(folder, home, is_hugging_face)


def named(path: Path) -> Path:
    """Resolve a path whose name is not the folder's: `.`, `..`, a link, or an id of the Hugging Face hub.

    Raises: CheckpointError for an id without a model.
    """
    if is_hub_id(path):
        return hub_folder(path)
    return path.resolve() if path.name in ("", "..") or path.is_symlink() else path


def home_of(path: Path) -> Path:
    """Return the folder of the config and the tokenizer, existing or not."""
    folder = named(path)
    return folder.parent.parent if CHECKPOINT_NAME.fullmatch(folder.name) else folder


def tokenizer_of(path: Path) -> Path | None:
    """Return the tokenizer.json of a model, if it has one."""
    file = home_of(path) / TOKENIZER
    return file if file.is_file() else None
