"""What a run takes over from the weights it starts from: architecture, tokenizer and positions; imports no torch.

The source is a run folder, a checkpoint in it, or a Hugging Face folder. What the run's own config leaves out is filled
in from it; an architecture that the config states must be the source's.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.errors import CheckpointError, ConfigError
from lab.model.config import DecoderConfig
from lab.model.huggingface.config import NAME as HUGGING_FACE
from lab.model.huggingface.config import decoder_config, read_settings
from lab.model.huggingface.rope import READ_AS, Rope
from lab.runs.checkpoints import NAME as CHECKPOINT_NAME
from lab.settings import parse_yaml

FREE = ("theta", "embedding_std", "head_chunk")  # settings of the model that are not part of its architecture
BASES = {16_384: 1e6, 32_768: 1e6, 65_536: 5e6, 131_072: 1e7, 262_144: 5e7}
"""RoPE base by target length in tokens: arXiv:2411.13476, the table of rotary bases."""


@dataclass(frozen=True)
class Source:
    """What a folder of trained weights says of itself; `window` is its training window where known."""

    model: dict[str, Any]
    position: dict[str, Any]
    tokenizer: dict[str, Any] | None
    window: int | None


def read_source(path: Path, *, own_frequencies: bool = False) -> Source:
    """Read a run folder, a checkpoint in it, or a Hugging Face folder, whose positions `own_frequencies` replace.

    Raises: CheckpointError for a folder that is neither, ConfigError for a model of another kind.
    """
    folder = named(path)
    if not folder.is_dir():
        raise CheckpointError(f"start.path={path}: no such folder; give a run folder, a checkpoint or a model folder")
    if (folder / HUGGING_FACE).is_file():
        return hugging_face_source(folder, own_frequencies)
    if CHECKPOINT_NAME.fullmatch(folder.name):
        folder = folder.parent.parent
    if not (folder / "config.yaml").is_file():
        raise CheckpointError(
            f"start.path={path}: holds neither a run nor a {HUGGING_FACE}; give a run folder, a checkpoint in it, or a "
            "Hugging Face folder"
        )
    values = parse_yaml((folder / "config.yaml").read_text(encoding="utf-8"), str(folder / "config.yaml"))
    if not isinstance(values, dict) or not all(
        isinstance(values.get(key), dict) for key in ("model", "position", "data")
    ):
        raise CheckpointError(f"start.path={path}: its config.yaml is not that of a run; give a run folder")
    own = part(values["data"], "tokenizer")
    tokenizer = {"method": "file", "path": str(folder / "tokenizer.json"), "eos": own.get("eos", "<eos>")}
    return Source(values["model"], values["position"], tokenizer, values["data"].get("window"))


def named(path: Path) -> Path:
    """Give a path that has a name: a checkpoint may be named as the folder one stands in."""
    return path if path.name else path.resolve()


def hugging_face_source(folder: Path, own_frequencies: bool) -> Source:
    """Read a Hugging Face folder."""
    settings = read_settings(folder)
    rope = Rope.read(settings)
    model = dataclasses.asdict(decoder_config(settings, rope, own_frequencies=own_frequencies))
    position = {} if own_frequencies else {"frequency": {"method": READ_AS[rope.kind], **rope.parameters()}}
    tokenizer, eos = None, end_token(folder)
    if eos is not None and (folder / "tokenizer.json").is_file():
        tokenizer = {"method": "file", "path": str(folder / "tokenizer.json"), "eos": eos}
    return Source(model, position, tokenizer, settings["max_position_embeddings"])


def tokenizer_of(path: Path) -> Path | None:
    """Find the tokenizer.json of a source, where it has one."""
    path = named(path)
    folder = path.parent.parent if CHECKPOINT_NAME.fullmatch(path.name) else path
    file = folder / "tokenizer.json"
    return file if file.is_file() else None


def end_token(folder: Path) -> str | None:
    """Find the token that ends a text, where tokenizer_config.json names it."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return None
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); copy the folder again") from error
    token = settings.get("eos_token") if isinstance(settings, dict) else None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def inherit(values: dict[str, Any], given: dict[str, Any]) -> None:
    """Fill a run's raw settings in from the source that start.path names.

    `given` are the settings with the command line's, which decide what was left out.

    Raises: ConfigError for an architecture other than that of the source, CheckpointError for a path without weights.
    """
    path = part(given, "start").get("path")
    model, data = part(given, "model"), part(given, "data")
    names = [f.name for f in dataclasses.fields(DecoderConfig)]
    resolved = all(name in model for name in names) and "tokenizer" in data and "position" in given
    if not isinstance(path, str) or resolved:
        return  # nothing to start from, or a run folder's config, in which everything has been filled in
    source = read_source(Path(path), own_frequencies="frequency" in part(given, "position"))
    faults = [
        f"model.{name}={model[name]}: the weights of start.path={path} have {source.model.get(name)}; leave it out"
        for name in names
        if name in model and name not in FREE and model[name] != source.model.get(name)
    ]
    if faults:
        raise ConfigError(*faults)
    values["model"] = {**source.model, **extended_base(source, given), **part(values, "model")}
    values["position"] = {**source.position, **part(values, "position")}
    if "tokenizer" not in data and source.tokenizer is None:
        raise ConfigError(
            f"data.tokenizer: must be set, start.path={path} holds no tokenizer.json with an end token beside it; give "
            "method: file, path and eos"
        )
    if "tokenizer" not in data:
        values["data"] = {**part(values, "data"), "tokenizer": source.tokenizer}


def part(values: dict[str, Any], key: str) -> dict[str, Any]:
    """Give a section, empty where it is missing or none."""
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def extended_base(source: Source, given: dict[str, Any]) -> dict[str, float]:
    """Choose the rotary base for a longer window, where neither it nor a frequency method is given."""
    window = part(given, "skip").get("target_len", part(given, "data").get("window"))
    scaled = part(source.position, "frequency").get("method", "rope") != "rope"
    chosen = scaled or "theta" in part(given, "model") or "frequency" in part(given, "position")
    if chosen or not isinstance(window, int) or (source.window is not None and window <= source.window):
        return {}
    base = base_for(window)
    return {"theta": base} if base is not None and base > source.model["theta"] else {}


def base_for(target_len: int) -> float | None:
    """Give the rotary base for a target length; none below 16K tokens.

    Source: arXiv:2411.13476, the table of rotary bases by training length.
    Example:
        >>> base_for(65_536), base_for(100_000), base_for(2_048)
        (5000000.0, 10000000.0, None)
    """
    if target_len < min(BASES):
        return None
    return next((base for length, base in BASES.items() if target_len <= length), max(BASES.values()))
