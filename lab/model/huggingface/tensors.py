"""The weights of a Hugging Face folder: names, safetensors files, shards.

    model.safetensors                   everything in one file, or
    model-00001-of-00003.safetensors    several files, and
    model.safetensors.index.json        which file holds which tensor

Weights need no permutation: both sides rotate dimensions j and j + head_dim / 2 as a pair.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lab.errors import CheckpointError

SINGLE, INDEX, OLD = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
NO_WEIGHT = "rotary_emb.inv_freq"  # a table in folders of early Llamas, computed from config.json here
FLOATS = ("F64", "F32", "F16", "BF16")
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


@dataclass(frozen=True)
class Stored:
    """A stored tensor's file, shape and dtype."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


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


def load_tensors(
    folder: Path, shapes: Mapping[str, torch.Size], *, tied: bool, dtype: torch.dtype, device: torch.device | str
) -> dict[str, Tensor]:
    """Read the tensors of the lab's names in `shapes`, converting one at a time; a tied head is the embedding itself.

    Raises: CheckpointError, a line for every tensor that is missing, left over or of another shape or type.
    """
    from safetensors import safe_open

    names = {hugging_face_name(name): name for name in shapes}
    stored = stored_tensors(folder)
    if tied and HEAD not in stored:
        del names[HEAD]
    faults = tensor_faults({theirs: tuple(shapes[name]) for theirs, name in names.items()}, stored)
    if faults:
        raise CheckpointError("\n".join(faults))
    found = {}
    for path in sorted({entry.file for entry in stored.values()}):
        with safe_open(path, framework="pt") as file:
            for theirs in (name for name in names if stored[name].file == path):
                tensor = file.get_tensor(theirs)  # maps the file, which may change after loading
                found[theirs] = tensor.to(device=device, dtype=dtype, copy=True)
    if tied and not torch.equal(found.get(HEAD, found[EMBEDDING]), found[EMBEDDING]):
        raise CheckpointError(f"{HEAD}: must equal {EMBEDDING}; set tie_word_embeddings to false in config.json")
    loaded = {name: found[theirs] for theirs, name in names.items()}
    return loaded | ({"head.weight": found[EMBEDDING]} if tied else {})


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """List the tensors of a folder without reading them.

    Raises: CheckpointError for a folder without weights, a missing shard or a broken file.
    """
    from safetensors import SafetensorError, safe_open

    stored = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    part = file.get_slice(name)
                    if not name.endswith(NO_WEIGHT):
                        stored[name] = Stored(path, tuple(part.get_shape()), part.get_dtype())
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: cannot be read ({error}); copy the folder again") from error
    return stored


def weight_files(folder: Path) -> list[Path]:
    """Find the one file, or the shards that the index names.

    Raises: CheckpointError.
    """
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        if list(folder.glob("pytorch_model*.bin")):
            raise CheckpointError(f"{folder}: holds {OLD} only, a pickle; convert it to safetensors")
        raise CheckpointError(f"{folder}: holds no {SINGLE} and no {INDEX}; use a folder with weights")
    try:
        shards = sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / INDEX}: cannot be read ({error!r}); copy the folder again") from error
    missing = [f"{folder / name}: missing, {INDEX} names it; copy the folder again" for name in shards]
    missing = [line for line, name in zip(missing, shards) if not (folder / name).is_file()]
    if missing:
        raise CheckpointError("\n".join(missing))
    return [folder / name for name in shards]


def tensor_faults(wanted: Mapping[str, tuple[int, ...]], stored: Mapping[str, Stored]) -> list[str]:
    """Compare the tensors that config.json implies with those stored, a line for each difference."""
    faults = []
    for name, shape in wanted.items():
        if name not in stored:
            remedy = "set tie_word_embeddings to true in config.json if it is the embedding" if name == HEAD else ""
            faults.append(f"{name}: missing from the weights; {remedy or 'copy the folder again'}")
        elif stored[name].shape != shape:
            faults.append(f"{name}={stored[name].shape}: must be {shape}; take config.json and weights of one model")
        elif stored[name].dtype not in FLOATS:
            faults.append(f"{name}={stored[name].dtype}: must be {', '.join(FLOATS)}; use the model's float weights")
    rule = "not part of the model that config.json describes; take config.json and weights of one model"
    return faults + [f"{name}: {rule}" for name in stored if name not in wanted]


def save_tensors(folder: Path, tensors: Mapping[str, Tensor], shard_bytes: int) -> None:
    """Write tensors of Hugging Face's names to one file, or to shards of at most `shard_bytes` and an index."""
    from huggingface_hub import save_torch_state_dict

    save_torch_state_dict(dict(tensors), folder, max_shard_size=shard_bytes)
