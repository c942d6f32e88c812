"""Read a checkpoint's small state and its weights, in current and earlier formats, in one process."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor, nn

from lab.errors import CheckpointError, first_line
from lab.train.checkpoints import Checkpoint
from lab.train.tensors import read_tensors, stored_weights

OLD_PREFIX = "decoder."  # of weights in checkpoints of earlier versions


def packed(state: dict[str, Any]) -> bytes:
    """Build the contents of state.ckpt, readable with weights_only."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def read_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Read a checkpoint's state.ckpt without running code from it.

    Raises: CheckpointError.
    """
    try:
        state = torch.load(checkpoint.state, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise CheckpointError(
            f"{checkpoint.state}: cannot be read ({first_line(error)}); use another checkpoint"
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{checkpoint.state}: is not a checkpoint's state; use another checkpoint")
    return state


def streams_of(state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the state of the data streams; Lightning named it by the class of the data module."""
    found: dict[str, Tensor] = state.get("data", state.get("PackedData", {}))
    return found


def refuse_incomplete(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint from which some part of a run, such as its data, would begin anew.

    Raises: CheckpointError.
    """
    state = read_state(checkpoint)
    missing = [name for name in ("consumed_tokens", "callbacks") if name not in state]
    missing += [] if "streams" in streams_of(state) else ["data streams"]
    if missing:
        raise CheckpointError(
            f"{checkpoint.state}: holds no {', '.join(missing)}; delete this checkpoint to use the one before it, or "
            "begin anew with --restart"
        )


def step_of(state: dict[str, Any]) -> int:
    """Return the optimizer steps done when a state was saved."""
    return int(state["step"] if "step" in state else state["global_step"])


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's weights by name, a shared one once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def shared_names(model: nn.Module) -> dict[str, str]:
    """Map every other name of a shared weight to its first."""
    first = {parameter: name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[parameter] for name, parameter in every if first[parameter] != name}


def described_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Describe a checkpoint's weights under all their names, without reading them.

    Raises: CheckpointError.
    """
    state = read_state(checkpoint)
    if not checkpoint.is_sharded:
        return {name.removeprefix(OLD_PREFIX): tensor for name, tensor in state["state_dict"].items()}
    weights = stored_weights(checkpoint.folder)
    return weights | {name: weights[first] for name, first in state["shared"].items()}


def read_weights_of(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Read all weights under all their names, without the optimizer, on the CPU.

    Raises: CheckpointError.
    """
    weights = described_weights(checkpoint)
    if checkpoint.is_sharded:
        shared = read_state(checkpoint)["shared"]
        read = {name: torch.empty_like(t, device="cpu") for name, t in weights.items() if name not in shared}
        read_tensors(read, checkpoint.folder)
        weights = {name: read[shared.get(name, name)] for name in weights}
    return weights


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Fill a model's weights from a checkpoint of its own shapes, without the optimizer.

    Raises: CheckpointError.
    """
    if checkpoint.is_sharded:
        read_tensors(weights_of(model), checkpoint.folder)
    else:
        model.load_state_dict(described_weights(checkpoint))
