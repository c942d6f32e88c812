"""Llama, Mistral, Qwen2 and Qwen3 folders of Hugging Face as decoders, and decoders as such folders.

Neither needs the transformers library. Positions that config.json does not support are passed to `load_pretrained`.

    model.safetensors                   all weights in one file, or
    model-00001-of-00003.safetensors    several files, and
    model.safetensors.index.json        the file of each tensor

Weights need no permutation: both sides rotate dimensions j and j + head_dim / 2 as a pair.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from lab import positions
from lab.core.errors import CheckpointError, ConfigError, DiskError, first_line, is_plain_name
from lab.core.files import disk_error, name_temporary, publish_folder, write_atomic, write_json, writing
from lab.model.decoder import Decoder
from lab.model.huggingface import config, rope

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HEAD = "lm_head.weight"
OUTSIDE = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
IN_BLOCK = {
    "attention_norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "attention.out": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.out": "mlp.down_proj",
}


def load_pretrained(
    path: str | os.PathLike[str],
    *,
    frequencies: positions.Frequencies | None = None,
    distance: positions.Distance | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Decoder:
    """Load a Hugging Face folder; `frequencies` and `distance` replace the folder's own positions.

    Raises: CheckpointError for a folder whose files are missing, broken or do not fit together; ConfigError for a model
        that the lab's decoder cannot run, with a line for each error.
    """
    folder = Path(path)
    settings = config.read_decoder_settings(folder)
    cfg = config.decoder_config(settings, own_frequencies=frequencies is not None)
    rope.name_ignored(folder / config.NAME, settings)
    if frequencies is None:
        method = rope.frequency_settings(settings)
        frequencies = positions.frequencies(**method, head_dim=cfg.head_dim, theta=cfg.theta)
    n = 2 * len(frequencies.inv_freq)
    if n != cfg.head_dim:
        raise ConfigError(f"frequencies.head_dim={n}: must be {cfg.head_dim}, that of the folder; build them with it")
    # No memory for weights that the folder's tensors replace.
    with torch.device("meta"):
        decoder = Decoder(cfg, frequencies=frequencies, distance=distance, seed=None)
    decoder.load_state_dict(load_tensors(folder, decoder, dtype, device), assign=True)
    if cfg.tie_embeddings:  # assigned tensors are two parameters
        decoder.head.weight = decoder.embedding.weight
    return decoder.eval()


def save_pretrained(
    decoder: Decoder,
    path: str | os.PathLike[str],
    *,
    train_len: int | None = None,
    token_ids: Mapping[str, int | None] = MappingProxyType({}),
    files: Mapping[str, str | bytes] = MappingProxyType({}),
) -> None:
    """Write a decoder as a Hugging Face folder, atomically, in the dtype of its parameters.

    `train_len` becomes max_position_embeddings; by default it is the frequency method's own length, if it has one.
    `token_ids` are those of special tokens in config.json, null by default; `files` are others to write, by name.

    Raises: CheckpointError for a path that is not empty; ConfigError for one that cannot be written, and for positions
        that config.json does not support; DiskError.
    """
    from huggingface_hub import save_torch_state_dict
    from safetensors import SafetensorError

    final = Path(path).absolute()
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        raise CheckpointError(f"{path}: is not empty; use a new or an empty folder")
    dtype = str(decoder.embedding.weight.dtype).removeprefix("torch.")
    settings = config.hugging_face_settings(decoder.cfg, decoder.frequencies, decoder.distance, dtype, train_len)
    tensors = {hugging_face_name(name): tensor for name, tensor in decoder.state_dict().items()}
    if decoder.cfg.tie_embeddings:
        del tensors[HEAD]
    # The folder is written under a temporary name and renamed at the end: one that exists is complete.
    temporary = name_temporary(final)
    try:
        with writing(str(path), "folder"):
            temporary.mkdir(parents=True)
        try:
            save_torch_state_dict(tensors, temporary)
        except SafetensorError as error:  # of the file, as the tensors are sound
            needed = sum(tensor.nbytes for tensor in tensors.values())
            raise DiskError(disk_error(final, needed, first_line(error))) from error
        write_json(temporary / config.NAME, {**settings, **token_ids})
        for name, content in files.items():
            write_atomic(temporary / name, content.encode() if isinstance(content, str) else content)
        publish_folder(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def hugging_face_name(name: str) -> str:
    """Translate a parameter's name.

    Example:
        >>> hugging_face_name("blocks.3.attention.q.bias")
        'model.layers.3.self_attn.q_proj.bias'
    """
    module, _, kind = name.rpartition(".")
    if module in OUTSIDE:
        return f"{OUTSIDE[module]}.{kind}"
    _, layer, part = module.split(".", 2)
    return f"model.layers.{layer}.{IN_BLOCK[part]}.{kind}"


def load_tensors(folder: Path, decoder: Decoder, dtype: torch.dtype, device: torch.device | str) -> dict[str, Tensor]:
    """Read the tensors of a decoder, converting one at a time; a tied head is the embedding itself.

    Raises: CheckpointError, a line for every tensor that is missing, not part of the model, or of another shape or
        type.
    """
    state, stored = decoder.state_dict(), find_tensors(folder)
    names = {hugging_face_name(name): name for name in state}
    if decoder.cfg.tie_embeddings and HEAD not in stored:
        del names[HEAD]
    shapes = {name: list(state[ours].shape) for name, ours in names.items()}
    dtypes, errors = "F64, F32, F16, BF16", []
    for name in {**shapes, **stored}:
        shape: object = "missing"
        if name in stored:
            part = stored[name].get_slice(name)  # reads shape and type alone
            shape, stored_dtype = part.get_shape(), part.get_dtype()
            if stored_dtype not in dtypes:
                errors.append(f"{name}={stored_dtype}: must be one of {dtypes}; use the model's float weights")
        if shape != shapes.get(name):
            errors.append(
                f"{name}={shape}: must be {shapes.get(name, 'absent')}; take config.json and weights of one model"
            )
    if errors:
        raise CheckpointError("\n".join(errors))
    loaded = {}
    for name, ours in names.items():
        # A tensor maps its file, which may change after loading: it is copied even if dtype and device are right.
        loaded[ours] = stored[name].get_tensor(name).to(device, dtype, copy=True)
    if decoder.cfg.tie_embeddings:
        embedding = loaded["embedding.weight"]
        if not torch.equal(loaded.get("head.weight", embedding), embedding):
            raise CheckpointError(
                f"{HEAD}: must equal model.embed_tokens.weight; set tie_word_embeddings to false in config.json"
            )
        loaded["head.weight"] = embedding
    return loaded


def find_tensors(folder: Path) -> dict[str, Any]:
    """Return the open file of each tensor: of those that the index lists, or of the single one.

    Raises: CheckpointError for a folder without weights, with a broken file, or with two copies of a tensor, of which
        transformers may read another than the lab.
    """
    from safetensors import SafetensorError, safe_open

    index = folder / INDEX
    names = {SINGLE} if (folder / SINGLE).is_file() else set()
    if index.is_file():
        listed = config.read_json(index).get("weight_map")
        if names:
            raise CheckpointError(f"{folder / SINGLE}: two copies of the weights with {INDEX}; delete one of them")
        if not isinstance(listed, dict) or not all(map(is_plain_name, listed.values())):
            raise CheckpointError(f"{index}: names no files of this folder; copy the folder again")
        names = {*listed.values()}
    if not names:
        raise CheckpointError(f"{folder}: has no {SINGLE} and no {INDEX}; {config.conversion(folder)}")
    stored: dict[str, Any] = {}
    for path in sorted(folder / name for name in names):
        try:
            file = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: cannot be read ({error}); copy the folder again") from error
        for name in file.keys():  # type: ignore[no-untyped-call]  # noqa: SIM118, which is no dictionary
            if name in stored:
                raise CheckpointError(f"{path}: {name}: two files have it; delete the wrong copy")
            if not name.endswith("rotary_emb.inv_freq"):  # a table of early Llamas, computed from config.json here
                stored[name] = file
    return stored
