"""Read a checkpoint in one process: its small state, and its weights as whole tensors.

Without torch.distributed.checkpoint, which writes the files and reads them into shards (lab/train/shards.py): its
import takes as long as a small evaluation.
"""

from __future__ import annotations

import io
import json
import math
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from lab.errors import CheckpointError, first_line
from lab.train.checkpoints import CONSUMED, WEIGHTS, Checkpoint

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
TYPES = {name: dtype for dtype, name in DTYPES.items()}
SHARDING = "DCP_SHARDING_INFO"  # entry of a file's header: the place of each shard in its tensor
NEEDED = (CONSUMED, "step", "schedule", "data", "callbacks", "shared")


def packed(state: dict[str, Any]) -> bytes:
    """Build the contents of state.ckpt, readable with weights_only."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def read_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Read a checkpoint's state.ckpt without running code from it.

    Raises: CheckpointError.
    """
    with refusing(checkpoint.state):
        state = torch.load(checkpoint.state, map_location="cpu", weights_only=True, mmap=True)
        if not isinstance(state, dict):
            raise ValueError("it is not a checkpoint's state")
    return state


def refuse_incomplete(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint from which some part of a run, such as its data, would begin anew.

    Raises: CheckpointError.
    """
    state = read_state(checkpoint)
    missing = [name for name in NEEDED if name not in state]
    if missing:
        raise CheckpointError(
            f"{checkpoint.state}: holds no {', '.join(missing)}; delete this checkpoint to use the one before it, or "
            "begin anew with --restart"
        )


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's weights by name, a shared one once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def shared_names(model: nn.Module) -> dict[str, str]:
    """Map every other name of a shared weight to its first."""
    first = {parameter: name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[parameter] for name, parameter in every if first[parameter] != name}


def read_weights_of(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Read all weights under all their names, without the optimizer, on the CPU.

    Raises: CheckpointError.
    """
    shared = read_state(checkpoint)["shared"]
    with refusing(checkpoint.folder):
        read = {
            name: torch.empty(whole_shape(pieces), dtype=TYPES[pieces[0].part.get_dtype()])
            for name, pieces in pieces_of(checkpoint.folder).items()
        }
    read_tensors(read, checkpoint.folder)
    return read | {name: read[first] for name, first in shared.items()}


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Fill a model's weights from a checkpoint of its own shapes, without the optimizer.

    Raises: CheckpointError.
    """
    read_tensors(weights_of(model), checkpoint.folder)


def read_tensors(tensors: dict[str, Tensor], folder: Path) -> None:
    """Fill whole weights from a checkpoint's files, whatever number of processes wrote them.

    Raises: CheckpointError for files that are broken or do not hold the tensors.
    """
    with refusing(folder):
        stored = pieces_of(folder)
        for name, tensor in tensors.items():
            pieces = stored.get(name, [])
            held = sum(math.prod(piece.shape) for piece in pieces)
            if not pieces or whole_shape(pieces) != tuple(tensor.shape) or held != tensor.numel():
                raise ValueError(f"it does not hold {name} as {tuple(tensor.shape)}")
            for piece in pieces:
                ends = map(sum, zip(piece.offsets, piece.shape, strict=True))
                tensor[tuple(map(slice, piece.offsets, ends))].copy_(piece.part[:])


class Piece(NamedTuple):
    """A tensor in a file, or the part of a tensor that begins at `offsets`; it is read when it is indexed."""

    part: Any
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


def pieces_of(folder: Path) -> dict[str, list[Piece]]:
    """List the pieces of each weight by its name."""
    found: dict[str, list[Piece]] = {}
    for path in sorted(folder.glob(f"{WEIGHTS}-*.safetensors")):
        with safe_open(path, framework="pt") as file:
            places = json.loads((file.metadata() or {}).get(SHARDING, "{}"))
            for name in file.keys():  # noqa: SIM118, which is no dictionary
                part = file.get_slice(name)
                shape = tuple(part.get_shape())
                offsets = tuple(places.get(name, {}).get("saved_offsets", [0] * len(shape)))
                found.setdefault(name, []).append(Piece(part, offsets, shape))
    return found


def whole_shape(pieces: list[Piece]) -> tuple[int, ...]:
    """Return the shape of the tensor that pieces make up."""
    ends = [[start + size for start, size in zip(piece.offsets, piece.shape, strict=True)] for piece in pieces]
    return tuple(max(each) for each in zip(*ends, strict=True))


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn what broken files raise into an error for the user."""
    faults = (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError)
    try:
        yield
    except faults as error:
        raise CheckpointError(f"{path}: cannot be read ({first_line(error)}); use another checkpoint") from error
