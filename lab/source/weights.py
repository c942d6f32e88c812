"""Weights of a run, a checkpoint or a Hugging Face folder, under the decoder's own names."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from lab.errors import ConfigError
from lab.model.decoder import Decoder
from lab.model.huggingface import load_pretrained
from lab.model.huggingface.config import read_settings
from lab.positions import frequencies
from lab.source.place import find_place
from lab.train.checkpoints import open_checkpoint
from lab.train.state import described_weights, load_weights, read_weights_of

MOST_FAULTS = 8  # weights named in one error


def start_from(decoder: Decoder, path: Path) -> None:
    """Load trained weights into a decoder.

    Raises: ConfigError naming each weight that does not fit; CheckpointError for a folder that holds none.
    """
    place = find_place(path, "start.path=")
    if place.is_hugging_face:
        weights = read_weights(path)
        refuse_misfits(decoder, weights, path)
        decoder.load_state_dict(weights)
    else:
        checkpoint = open_checkpoint(place.folder)
        refuse_misfits(decoder, described_weights(checkpoint), path)
        load_weights(decoder, checkpoint)


def refuse_misfits(decoder: Decoder, weights: dict[str, Tensor], path: Path) -> None:
    """Refuse weights that a decoder lacks, or has in another shape.

    Raises: ConfigError naming each.
    """
    own = decoder.state_dict()
    faults = [
        f"start.path={path}: {name} is {shape(weights.get(name))}, the model's is {shape(own.get(name))}; leave the "
        "model's sizes out"
        for name in sorted(weights.keys() | own.keys())
        if shape(weights.get(name)) != shape(own.get(name))
    ]
    if faults:
        raise ConfigError(*faults[:MOST_FAULTS])


def shape(tensor: Tensor | None) -> str:
    """Format the shape of a weight."""
    return "missing" if tensor is None else " x ".join(map(str, tensor.shape))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a run folder's newest checkpoint, of a checkpoint, or of a Hugging Face folder, on the CPU.

    Raises: CheckpointError for a folder that is neither or is broken; ConfigError for a model of another kind.
    """
    place = find_place(path)
    if not place.is_hugging_face:
        return read_weights_of(open_checkpoint(place.folder))
    settings = read_settings(place.folder)
    head_dim = settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
    return dict(load_pretrained(place.folder, frequencies=frequencies("rope", head_dim=head_dim)).state_dict())
