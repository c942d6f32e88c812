"""Llama, Mistral, Qwen2 and Qwen3 folders of Hugging Face as decoders, and decoders as such folders.

Neither needs the transformers library. Positions that config.json does not support are passed to `load_pretrained`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from lab.errors import CheckpointError, ConfigError
from lab.files import publish_folder, write_atomic, write_json, writing
from lab.model.decoder import Decoder
from lab.model.huggingface.config import (
    NAME,
    decoder_config,
    frequency_settings,
    hugging_face_settings,
    read_settings,
)
from lab.model.huggingface.interface import apply
from lab.model.huggingface.tensors import hugging_face_name, load_tensors
from lab.positions import Distance, Frequencies
from lab.positions import frequencies as make_frequencies

__all__ = ["apply", "load_pretrained", "save_pretrained"]

SHARD_BYTES = 5 * 10**9  # the size of transformers' own files up to version 4


def load_pretrained(
    path: str | os.PathLike[str],
    *,
    frequencies: Frequencies | None = None,
    distance: Distance | None = None,
    backend: str = "auto",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Decoder:
    """Load a Hugging Face folder; `frequencies` and `distance` replace the folder's own positions.

    Raises: CheckpointError for a folder whose files are missing, broken or do not fit together; ConfigError for a model
        that the lab's decoder cannot run, a line per fault.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; use the folder of a Hugging Face model")
    settings = read_settings(folder)
    cfg = decoder_config(settings, own_frequencies=frequencies is not None)
    if frequencies is None:
        frequencies = make_frequencies(**frequency_settings(settings), head_dim=cfg.head_dim, theta=cfg.theta)
    if 2 * len(frequencies.inv_freq) != cfg.head_dim:
        n = 2 * len(frequencies.inv_freq)
        raise ConfigError(f"frequencies.head_dim={n}: must be {cfg.head_dim}, that of the folder; build them with it")
    with torch.device("meta"):
        decoder = Decoder(cfg, frequencies=frequencies, distance=distance, backend=backend, seed=None)
    shapes = {name: tensor.shape for name, tensor in decoder.state_dict().items()}
    tensors = load_tensors(folder, shapes, tied=cfg.tie_embeddings, dtype=dtype, device=device)
    decoder.load_state_dict(tensors, assign=True)
    if cfg.tie_embeddings:
        decoder.head.weight = decoder.embedding.weight
    return decoder.eval()


def save_pretrained(
    decoder: Decoder,
    path: str | os.PathLike[str],
    *,
    train_len: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    token_ids: Mapping[str, int | None] = MappingProxyType({}),
    files: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write a decoder as a Hugging Face folder, atomically, in the dtype of its parameters.

    `train_len` becomes max_position_embeddings; left out, it is the frequency method's own length, if it has one.
    `token_ids` are those of special tokens in config.json, null where left out; `files` are texts to write beside it.

    Raises: CheckpointError for a path that is not empty; ConfigError for one that cannot be written, and for positions
        that config.json does not support.
    """
    from huggingface_hub import save_torch_state_dict

    final = Path(path).absolute()
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        raise CheckpointError(f"{path}: is not empty; use a new or an empty folder")
    dtype = str(decoder.embedding.weight.dtype).removeprefix("torch.")
    settings = hugging_face_settings(decoder.cfg, decoder.frequencies, decoder.distance, dtype, train_len)
    tied = decoder.cfg.tie_embeddings
    state = {name: tensor for name, tensor in decoder.state_dict().items() if not (tied and name == "head.weight")}
    tensors = {hugging_face_name(name): tensor for name, tensor in state.items()}
    temporary = final.with_name(f".{final.name}.tmp-{os.getpid()}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        with writing(str(path), "folder"):
            temporary.mkdir(parents=True)
        save_torch_state_dict(tensors, temporary, max_shard_size=shard_bytes)
        write_json(temporary / NAME, {**settings, **token_ids})
        for name, text in files.items():
            write_atomic(temporary / name, text.encode())
        publish_folder(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
