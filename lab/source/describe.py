"""Read the architecture, positions and tokenizer of a run, a checkpoint or a Hugging Face folder; no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.errors import CheckpointError
from lab.model.huggingface.config import decoder_config, read_json, read_settings, token_text
from lab.model.huggingface.rope import READ_AS, Rope
from lab.settings import parse_yaml, part
from lab.source.place import CONFIG, TOKENIZER, find_place, tokenizer_of

FIELD = "start.path="


@dataclass(frozen=True)
class Source:
    """Raw settings of a trained model; `window` is its training window where known."""

    model: dict[str, Any]
    position: dict[str, Any]
    tokenizer: dict[str, Any] | None
    window: int | None


def read_source(path: Path, *, own_frequencies: bool = False) -> Source:
    """Read a run folder, a checkpoint in it, or a Hugging Face folder, whose positions `own_frequencies` replace.

    Raises: CheckpointError for any other folder, ConfigError for a model of another kind.
    """
    place = find_place(path, FIELD)
    if place.is_hugging_face:
        return hugging_face_source(place.folder, own_frequencies)
    config = place.home / CONFIG
    values: Any = parse_yaml(config.read_text(encoding="utf-8"), str(config)) if config.is_file() else None
    sections = [values.get(key) for key in ("model", "position", "data")] if isinstance(values, dict) else [None]
    if not all(isinstance(section, dict) for section in sections):
        raise CheckpointError(f"{FIELD}{path}: holds no {CONFIG} of a run; use a run folder or a checkpoint in it")
    eos = part(values["data"], "tokenizer").get("eos", "<eos>")
    tokenizer = {"method": "file", "path": str(place.home / TOKENIZER), "eos": eos}
    return Source(values["model"], values["position"], tokenizer, values["data"].get("window"))


def hugging_face_source(folder: Path, own_frequencies: bool) -> Source:
    """Read a Hugging Face folder."""
    settings = read_settings(folder)
    rope = Rope.read(settings)
    model = dataclasses.asdict(decoder_config(settings, rope, own_frequencies=own_frequencies))
    position = {} if own_frequencies else {"frequency": {"method": READ_AS[rope.kind], **rope.parameters()}}
    file, eos = tokenizer_of(folder), token_text(read_json(folder / "tokenizer_config.json"), "eos_token")
    tokenizer = None if file is None or eos is None else {"method": "file", "path": str(file), "eos": eos}
    return Source(model, position, tokenizer, settings["max_position_embeddings"])
