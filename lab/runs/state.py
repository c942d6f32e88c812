"""Save and restore a checkpoint's state: tensors by name and small values, in current and earlier formats."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from lab.errors import CheckpointError
from lab.runs.checkpoints import OPTIMIZER, Checkpoint
from lab.runs.shards import read_shards, stored_weights

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
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"{checkpoint.state}: cannot be read ({reason}); use another checkpoint") from error
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
        read_shards(read, checkpoint.folder)
        weights = {name: read[shared.get(name, name)] for name in weights}
    return weights


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Fill a model's weights from a checkpoint of its own shapes, without the optimizer.

    Raises: CheckpointError.
    """
    if checkpoint.is_sharded:
        read_shards(weights_of(model), checkpoint.folder)
    else:
        model.load_state_dict(described_weights(checkpoint))


def optimizer_tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    """Name the moments in an optimizer's state by the parameters they belong to."""
    return {
        f"{OPTIMIZER}.{name}.{key}": value
        for name, values in state["state"].items()
        for key, value in values.items()
        if value.ndim
    }


def optimizer_scalars(state: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Collect the scalars that an optimizer keeps for each parameter: its steps."""
    return {
        name: {key: value.cpu() for key, value in values.items() if not value.ndim}
        for name, values in state["state"].items()
    }


def tensors_to_save(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a checkpoint by name, and the remaining state for state.ckpt."""
    state: Any = get_optimizer_state_dict(model, optimizer)
    small = {"optimizer": optimizer_scalars(state), "shared": shared_names(model)}
    return weights_of(model) | optimizer_tensors(state), small


def restore_tensors(
    model: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint, saved: dict[str, Any], group: ProcessGroup | None
) -> None:
    """Fill weights and moments, whole or sharded, from a checkpoint of any number of processes. A collective call.

    Raises: CheckpointError.
    """
    state: Any = get_optimizer_state_dict(model, optimizer)  # creates moments that do not exist yet
    tensors = weights_of(model) | optimizer_tensors(state)
    if checkpoint.is_sharded:
        read_shards(tensors, checkpoint.folder, group)
        scalars = saved["optimizer"]
    else:
        old = old_optimizer(model, optimizer, saved["optimizer_states"][0])
        weights = {name.removeprefix(OLD_PREFIX): tensor for name, tensor in saved["state_dict"].items()}
        copy_into(tensors, weights | optimizer_tensors({"state": old}))
        scalars = optimizer_scalars({"state": old})
    for name, values in state["state"].items():
        values.update(scalars[name])
    set_optimizer_state_dict(model, optimizer, state)


def old_optimizer(model: nn.Module, optimizer: Optimizer, old: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Name the parameters in an optimizer's state of earlier versions, which numbers them.

    The n-th entry over all groups is our n-th parameter, whatever its number: one process and DDP number by group,
    FSDP by the model's order.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    ours = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    numbers: Iterable[int] = [number for group in old["param_groups"] for number in group["params"]]
    return {name: old["state"][number] for name, number in zip(ours, numbers, strict=True)}


def copy_into(tensors: dict[str, Tensor], whole: dict[str, Tensor]) -> None:
    """Fill tensors from whole ones of the same names, or each process its own shards of them."""
    for name, tensor in tensors.items():
        source = whole[name]
        if isinstance(tensor, DTensor):
            source = distribute_tensor(source, tensor.device_mesh, tensor.placements, src_data_rank=None)
        tensor.copy_(source)
