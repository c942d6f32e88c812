"""Models of the Hugging Face hub by id, hf:OWNER/NAME or hf:OWNER/NAME@REVISION: from the network, else the cache."""

from __future__ import annotations

import fnmatch
import functools
from pathlib import Path

from lab.errors import CheckpointError

PREFIX = "hf:"
FILES = ("*.json", "*.safetensors", "*.jinja")


def is_hub_id(path: Path) -> bool:
    """Return whether a model is named by its id on the hub.

    Example:
        >>> is_hub_id(Path("hf:allenai/OLMo-2-0425-1B@main")), is_hub_id(Path("runs/cpu_demo"))
        (True, False)
    """
    return str(path).startswith(PREFIX)


def revisions(word: str) -> list[str]:
    """List the ids of the branches and tags that match hf:OWNER/NAME@PATTERN: the hub's, else those in the cache."""
    from huggingface_hub import HfApi, constants, scan_cache_dir

    name, _, pattern = word.removeprefix(PREFIX).partition("@")
    try:
        listed = HfApi().list_repo_refs(name)
        found = [ref.name for ref in (*listed.branches, *listed.tags)]
    except (OSError, ValueError):
        cached = scan_cache_dir(constants.HF_HUB_CACHE).repos if Path(constants.HF_HUB_CACHE).is_dir() else ()
        found = [ref for repo in cached if repo.repo_id == name for ref in repo.refs]
    return [f"{PREFIX}{name}@{revision}" for revision in fnmatch.filter(found, pattern)]


@functools.cache
def hub_folder(path: Path) -> Path:
    """Return the folder of a model of the hub, downloaded unless it is in the cache.

    Raises: CheckpointError for a model that neither the hub nor the cache has.
    """
    from huggingface_hub import snapshot_download

    name, _, revision = str(path).removeprefix(PREFIX).partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=list(FILES)))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split("\n", 1)[0].split())
        raise CheckpointError(
            f"{path}: not in the cache, and not to be had ({reason}); download it, or use a folder"
        ) from error
