"""Read the tensors of a checkpoint's safetensors files in one process.

Without torch.distributed.checkpoint, which writes the files and reads them into shards (lab/train/shards.py): its
import takes as long as a small evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lab.errors import CheckpointError, first_line
from lab.train.checkpoints import OPTIMIZER, WEIGHTS

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
NAMES = {name: dtype for dtype, name in DTYPES.items()}
SHARDING = "DCP_SHARDING_INFO"  # entry of a file's header: the place of each shard in its tensor


@dataclass(frozen=True)
class Piece:
    """A tensor, or a part of it that begins at `offsets`, in a file."""

    file: Path
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def place(self) -> tuple[slice, ...]:
        """The part's place in the tensor."""
        return tuple(slice(start, start + size) for start, size in zip(self.offsets, self.shape, strict=True))


def kind_of(name: str) -> str:
    """Return which kind of file holds a tensor.

    Example:
        >>> kind_of("blocks.0.attention.q.weight"), kind_of("optimizer.embedding.weight.exp_avg")
        ('weights', 'optimizer')
    """
    return OPTIMIZER if name.startswith(f"{OPTIMIZER}.") else WEIGHTS


def stored_weights(folder: Path) -> dict[str, Tensor]:
    """Describe the weights in a checkpoint's files by tensors without memory, under the decoder's own names.

    Raises: CheckpointError.
    """
    with refusing(folder):
        return {
            name: torch.empty(whole_shape(pieces), dtype=pieces[0].dtype, device="meta")
            for name, pieces in pieces_of(folder).items()
        }


def read_tensors(tensors: dict[str, Tensor], folder: Path) -> None:
    """Fill whole weights from a checkpoint's files, whatever number of processes wrote them.

    Raises: CheckpointError for files that are broken or do not hold the tensors.
    """
    from safetensors import safe_open

    with refusing(folder):
        stored = pieces_of(folder)
        for name, tensor in tensors.items():
            pieces = stored.get(name, [])
            held = sum(torch.Size(piece.shape).numel() for piece in pieces)
            if not pieces or whole_shape(pieces) != tuple(tensor.shape) or held != tensor.numel():
                raise ValueError(f"it does not hold {name} as {tuple(tensor.shape)}")
        for path in sorted({piece.file for name in tensors for piece in stored[name]}):
            with safe_open(path, framework="pt") as file:
                for name, tensor in tensors.items():
                    for piece in (piece for piece in stored[name] if piece.file == path):
                        tensor[piece.place].copy_(file.get_tensor(name))


def pieces_of(folder: Path) -> dict[str, list[Piece]]:
    """List the pieces of each weight."""
    from safetensors import safe_open

    found: dict[str, list[Piece]] = {}
    for path in sorted(folder.glob(f"{WEIGHTS}-*.safetensors")):
        with safe_open(path, framework="pt") as file:
            places = json.loads((file.metadata() or {}).get(SHARDING, "{}"))
            for name in file.keys():  # noqa: SIM118, which is no dictionary
                part = file.get_slice(name)
                shape = tuple(part.get_shape())
                offsets = tuple(places.get(name, {}).get("saved_offsets", [0] * len(shape)))
                found.setdefault(name, []).append(Piece(path, offsets, shape, NAMES[part.get_dtype()]))
    return found


def whole_shape(pieces: list[Piece]) -> tuple[int, ...]:
    """Return the shape of the tensor that pieces make up."""
    ends = [[part.stop for part in piece.place] for piece in pieces]
    return tuple(max(each) for each in zip(*ends, strict=True))


@contextmanager
def refusing(folder: Path) -> Iterator[None]:
    """Turn what broken files raise into an error for the user."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder}: cannot be read ({first_line(error)}); use another checkpoint") from error
