"""The weights of a Hugging Face folder: names, safetensors files, shards.

    model.safetensors                   everything in one file, or
    model-00001-of-00003.safetensors    several files, and
    model.safetensors.index.json        which file holds which tensor

Weights need no permutation: both sides rotate dimensions j and j + head_dim / 2 as a pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from lab.errors import CheckpointError
from lab.model.huggingface.config import read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
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


Stored = dict[str, tuple[Path, tuple[int, ...], str]]
"""The file, shape and dtype of each stored tensor."""


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
    for path in {path for path, _, _ in stored.values()}:
        with safe_open(path, framework="pt") as file:
            for theirs in (name for name in names if stored[name][0] == path):
                tensor = file.get_tensor(theirs)  # maps the file, which may change after loading
                found[theirs] = tensor.to(device=device, dtype=dtype, copy=True)
    if tied and not torch.equal(found.get(HEAD, found[EMBEDDING]), found[EMBEDDING]):
        raise CheckpointError(f"{HEAD}: must equal {EMBEDDING}; set tie_word_embeddings to false in config.json")
    loaded = {name: found[theirs] for theirs, name in names.items()}
    return loaded | ({"head.weight": found[EMBEDDING]} if tied else {})


def stored_tensors(folder: Path) -> Stored:
    """List the tensors of a folder without reading them.

    Raises: CheckpointError for a folder without weights, a missing shard or a broken file.
    """
    from safetensors import SafetensorError, safe_open

    whole, index = folder / SINGLE, folder / INDEX
    if not whole.is_file() and not index.is_file():
        raise CheckpointError(f"{folder}: holds no {SINGLE} and no {INDEX}; use a folder with weights, not pickles")
    names = {SINGLE} if whole.is_file() else {*read_json(index).get("weight_map", {}).values()}
    stored: Stored = {}
    for path in sorted(folder / name for name in names):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    part = file.get_slice(name)
                    if not name.endswith(NO_WEIGHT):
                        stored[name] = path, tuple(part.get_shape()), part.get_dtype()
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: cannot be read ({error}); copy the folder again") from error
    return stored


def tensor_faults(wanted: Mapping[str, tuple[int, ...]], stored: Stored) -> list[str]:
    """Compare the tensors that config.json implies with those stored, a line for each difference."""
    faults, other = [], "take config.json and weights of one model"
    for name, shape in wanted.items():
        _, found, dtype = stored.get(name, ("", (), ""))
        if name not in stored:
            faults.append(f"{name}: missing from the weights; copy the folder again, or {other}")
        elif found != shape:
            faults.append(f"{name}={found}: must be {shape}; {other}")
        elif dtype not in FLOATS:
            faults.append(f"{name}={dtype}: must be {', '.join(FLOATS)}; use the model's float weights")
    rule = "not part of the model that config.json describes"
    return faults + [f"{name}: {rule}; {other}" for name in stored if name not in wanted]
