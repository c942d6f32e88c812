"""Trained weights from anywhere, under the decoder's own names."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from lab.errors import ConfigError
from lab.model.decoder import Decoder
from lab.model.huggingface import load_pretrained
from lab.model.huggingface.config import NAME as HUGGING_FACE
from lab.model.huggingface.config import read_settings
from lab.positions import frequencies
from lab.runs.checkpoints import open_checkpoint

PREFIX = "decoder."
MOST_FAULTS = 8  # weights named when many do not fit


def start_from(decoder: Decoder, path: Path) -> None:
    """Give a decoder trained weights.

    Raises: ConfigError naming each weight that does not fit; CheckpointError for a folder that holds none.
    """
    weights, own = read_weights(path), decoder.state_dict()
    faults = [
        f"start.path={path}: {name} is {shape(weights.get(name))}, the model's is {shape(own.get(name))}; leave the "
        "model's sizes out"
        for name in sorted(weights.keys() | own.keys())
        if shape(weights.get(name)) != shape(own.get(name))
    ]
    if faults:
        raise ConfigError(*faults[:MOST_FAULTS])
    decoder.load_state_dict(weights)


def shape(tensor: Tensor | None) -> str:
    """Format the shape of a weight."""
    return "missing" if tensor is None else " x ".join(map(str, tensor.shape))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a run folder's newest checkpoint, of a checkpoint, or of a Hugging Face folder, on the CPU.

    Raises: CheckpointError for a folder that is neither or is broken; ConfigError for a model of another kind.
    """
    path = path if path.name else path.resolve()
    if (path / HUGGING_FACE).is_file():
        settings = read_settings(path)
        head_dim = settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
        return dict(load_pretrained(path, frequencies=frequencies("rope", head_dim=head_dim)).state_dict())
    state = torch.load(open_checkpoint(path).state, map_location="cpu", weights_only=True, mmap=True)["state_dict"]
    return {name.removeprefix(PREFIX): tensor for name, tensor in state.items()}
