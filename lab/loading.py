"""Open a trained model: a run folder, a checkpoint in it, or a Hugging Face folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from lab.config import Experiment, load_experiment
from lab.data.preparation import shard_folder
from lab.data.tokenizer import load_tokenizer
from lab.errors import ConfigError
from lab.model.decoder import Decoder
from lab.model.huggingface import load_pretrained
from lab.model.huggingface.config import decoder_config, read_settings
from lab.model.huggingface.rope import Rope
from lab.positions import Distance, Frequencies
from lab.positions.methods import Replaced, describe
from lab.positions.string import of_length
from lab.settings import Raw, part, validated
from lab.source.hub import is_hub_id
from lab.source.place import find_place, tokenizer_of
from lab.train.checkpoints import open_checkpoint
from lab.train.state import load_weights


@dataclass(frozen=True)
class OpenedModel:
    """An opened model; fields that its source does not state are None.

    `train_len` is the training window in tokens: a run's data.window, a Hugging Face folder's max_position_embeddings.
    `folder` is the run folder, and `consumed_tokens` the tokens that the checkpoint was trained on.
    """

    name: str
    decoder: Decoder
    tokenizer: Tokenizer | None
    train_len: int | None
    experiment: Experiment | None
    folder: Path | None
    consumed_tokens: int | None

    @property
    def method(self) -> str:
        """Name the position methods in results, as frequency+distance with the parameters that are not defaults."""
        return f"{describe(self.decoder.frequencies.config)}+{describe(self.decoder.distance)}"


def open_model(
    path: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    *,
    device: torch.device | str = "cpu",
    backend: str = "auto",
) -> OpenedModel:
    """Open a run folder, a checkpoint in it, a Hugging Face folder or hf:OWNER/NAME@REVISION, to compute in float32.

    `overrides` are dotted settings: any of a run's config, and position.frequency.* and position.distance.* of a
    Hugging Face folder. A tokenizer.json is read where there is one, in the folder or with the run's shards.

    Raises: LabError for a folder that is neither, files that are broken, or a wrong override.
    """
    place = find_place(Path(path))
    overrides = dict(overrides or {})
    if place.is_hugging_face:
        model = open_hugging_face(place.folder.resolve(), overrides, device, backend)
        return replace(model, name=Path(path).name) if is_hub_id(Path(path)) else model
    return open_run(place.folder.resolve(), overrides, device, backend)


def open_run(path: Path, overrides: dict[str, Any], device: torch.device | str, backend: str) -> OpenedModel:
    """Open a run folder's newest checkpoint, or the checkpoint given.

    Raises: LabError.
    """
    checkpoint = open_checkpoint(path)
    folder = checkpoint.folder.parent.parent
    experiment = load_experiment(folder / "config.yaml", overrides)
    decoder = Decoder(
        experiment.model,
        frequencies=experiment.frequencies,
        distance=experiment.position.distance,
        backend=backend,
        seed=None,
    )
    load_weights(decoder, checkpoint)
    decoder, tokenizer = decoder.to(device).eval(), tokenizer_in(folder) or tokenizer_in(shard_folder(experiment.data))
    window, consumed = experiment.data.window, checkpoint.consumed_tokens
    return OpenedModel(folder.name, decoder, tokenizer, window, experiment, folder, consumed)


def open_hugging_face(folder: Path, overrides: dict[str, Any], device: torch.device | str, backend: str) -> OpenedModel:
    """Open a Hugging Face folder with the position methods that the overrides name, or its own.

    Raises: LabError.
    """
    frequencies, distance = replaced_methods(folder, overrides)
    decoder = load_pretrained(folder, frequencies=frequencies, distance=distance, device=device, backend=backend)
    train_len = read_settings(folder)["max_position_embeddings"]
    return OpenedModel(folder.name, decoder, tokenizer_in(folder), train_len, None, None, None)


def replaced_methods(folder: Path, overrides: dict[str, Any]) -> tuple[Frequencies | None, Distance]:
    """Build the position methods that dotted overrides name; None means the folder's own frequency method.

    Raises: LabError.
    """
    others = [key for key in overrides if key.split(".")[0] != "position"]
    if others:
        rule = "not a setting of a Hugging Face folder; set position.frequency or position.distance"
        raise ConfigError(*(f"{key}={overrides[key]}: {rule}" for key in others))
    raw = Raw({}, str(folder))
    raw.override(overrides)
    named = part(part(raw.values, "position"), "distance")
    if named.get("method") == "string" and "shift" not in named:
        raw.values["position"]["distance"] = {**of_length(read_settings(folder)["max_position_embeddings"]), **named}
    position = validated(Replaced, raw).position
    distance = position.distance
    if "frequency" not in raw.values.get("position", {}):
        return None, distance
    settings = read_settings(folder)
    cfg = decoder_config(settings, Rope.read(settings), own_frequencies=True)
    return Frequencies.of(position.frequency, cfg.head_dim, cfg.theta), distance


def tokenizer_in(folder: Path) -> Tokenizer | None:
    """Read a folder's tokenizer.json, if it has one.

    Raises: DataError for a broken file.
    """
    file = tokenizer_of(folder)
    return None if file is None else load_tokenizer(file)
