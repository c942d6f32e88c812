"""Collect and restore weights and moments of a run in training, in current and earlier formats.

Apart from lab/train/state.py, because the import of torch.distributed.checkpoint takes as long as a small evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from lab.train.checkpoints import OPTIMIZER, Checkpoint
from lab.train.shards import read_shards
from lab.train.state import OLD_PREFIX, shared_names, weights_of


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
