"""Write, publish and read a checkpoint's tensors through torch.distributed.checkpoint (DCP), while a run trains.

Each process writes what it holds: its shards, or its part of tensors that are replicated. A file's header names the
place of each shard in its tensor, in the form that DCP's own reader of safetensors takes. A file that holds whole
tensors is one like any other. Any number of processes reads what any number wrote.

DCP's own writers do not serve. HuggingFaceStorageWriter holds a whole file in memory a second time, and
FileSystemWriter stores its metadata as a pickle, which runs code when it is read.
"""

import io
import json
import os
import shutil
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, futures, nn
from torch.distributed import ProcessGroup, checkpoint
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.optim import Optimizer

from lab.core.errors import CheckpointError, LabError, first_line
from lab.core.files import FileEntry, publish_folder, remove, write_hashed, write_json
from lab.runs import checkpoints
from lab.runs.checkpoints import OPTIMIZER, SHARDING, TEMPORARY, TENSORS, Checkpoint, State, refusing

Files = dict[str, FileEntry]
MOMENTS = "optimizer."  # begins the names of the optimizer's tensors
DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
NO_GROUP = ".*torch.distributed is disabled.*"  # DCP's warning, irrelevant to a single process


@dataclass(eq=False)
class ShardWriter(StorageWriter):
    """Writes one checkpoint: process 0 makes the folder, all write tensors, 0 writes the small files and publishes.

    DCP raises an error of any process in all of them.
    """

    root: Path
    small: Mapping[str, bytes]
    publish: Callable[[Files], None]

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a writer is used for one checkpoint."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Create the folder before any process writes into it."""
        if is_coordinator:
            temporary_folder(self.root)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Number the processes, for the names of their files."""
        return [replace(plan, storage_data=number) for number, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> futures.Future[list[WriteResult]]:
        """Write this process's part of the plan, weights and moments to one file each."""
        results = []
        for kind in TENSORS:
            items = [
                item
                for item in plan.items
                if item.index.fqn.startswith(MOMENTS) == (kind == OPTIMIZER) and item.tensor_data.chunk.sizes.numel()
            ]
            if items:
                name = f"{kind}{plan.storage_data:05d}.safetensors"
                entry = write_hashed(self.root / TEMPORARY / name, safetensors_parts(items, planner))
                results.append(WriteResult(MetadataIndex(name), entry["bytes"], entry))
        done: futures.Future[list[WriteResult]] = futures.Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        written = {name: write_hashed(self.root / TEMPORARY / name, [data]) for name, data in self.small.items()}
        self.publish(written | {result.index.fqn: result.storage_data for part in results for result in part})

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Refuse to be chosen by a path."""
        return False


def safetensors_parts(items: list[WriteItem], planner: SavePlanner) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file in parts: the header, then each tensor, without a copy on a CPU.

    Source: the safetensors format, version 0.5: u64 length of the header, JSON header, bytes in the header's order.
    """
    header: dict[str, Any] = {}
    place = 0
    for item in items:
        sizes, dtype = item.tensor_data.chunk.sizes, item.tensor_data.properties.dtype
        end = place + sizes.numel() * dtype.itemsize
        header[item.index.fqn] = {"dtype": DTYPES[dtype], "shape": list(sizes), "data_offsets": [place, end]}
        place = end
    offsets = {item.index.fqn: {"saved_offsets": list(item.tensor_data.chunk.offsets)} for item in items}
    stated = {SHARDING: json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
    encoded = json.dumps({"__metadata__": stated, **header}).encode()
    encoded += b" " * (-len(encoded) % 8)
    yield struct.pack("<Q", len(encoded)) + encoded
    for item in items:
        tensor: Tensor = planner.resolve_data(item)  # type: ignore[assignment]
        yield memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())


def write_shards(
    tensors: dict[str, Any], writer: ShardWriter, group: ProcessGroup | None, *, background: bool
) -> Future[Any] | None:
    """Write and publish a checkpoint; in the background from a copy of the tensors. A collective call.

    Raises: CheckpointError.
    """
    if background:
        return checkpoint.async_save(tensors, storage_writer=writer, process_group=group)
    with one_error(f"{writer.root}: no checkpoint could be written"):
        checkpoint.save(tensors, storage_writer=writer, process_group=group)
    return None


@contextmanager
def one_error(rule: str, remedy: str = "") -> Iterator[None]:
    """Report the first error of any process as one line, the user's own errors as they are."""
    try:
        yield
    except checkpoint.CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        if isinstance(first, LabError):
            raise first from error
        raise CheckpointError(f"{rule} ({first_line(first)}){remedy}") from error


def read_shards(tensors: dict[str, Any], folder: Path, group: ProcessGroup | None = None) -> None:
    """Fill tensors, or this process's shards of them, from a checkpoint's files.

    A collective call where there is a group, otherwise one process's own.

    Raises: CheckpointError for files that are broken or do not hold the tensors.
    """
    reader = checkpoint.HuggingFaceStorageReader(str(folder))
    own = [*map(str, Checkpoint(folder).tensor_files())]
    reader.fs.ls = lambda path: own  # type: ignore[method-assign]  # in place of all that the folder contains
    with one_error(f"{folder}: cannot be read", "; use another checkpoint"):
        checkpoint.load(tensors, storage_reader=reader, process_group=group, no_dist=group is None)


def packed(state: dict[str, Any]) -> bytes:
    """Build the contents of state.ckpt, readable with weights_only."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's weights by name, a shared one once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def shared_names(model: nn.Module) -> dict[str, str]:
    """Map every other name of a shared weight to its first."""
    first = {parameter: name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[parameter] for name, parameter in every if first[parameter] != name}


def optimizer_tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    """Name the moments in an optimizer's state by the parameters they belong to."""
    return {
        f"{MOMENTS}{name}.{key}": value
        for name, values in state["state"].items()
        for key, value in values.items()
        if value.ndim
    }


def tensors_to_save(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a checkpoint by name, and the remaining state: each parameter's steps, and shared names."""
    state: Any = get_optimizer_state_dict(model, optimizer)
    scalars = {
        name: {key: value.cpu() for key, value in values.items() if not value.ndim}
        for name, values in state["state"].items()
    }
    return weights_of(model) | optimizer_tensors(state), {"optimizer": scalars, "shared": shared_names(model)}


def restore_tensors(
    model: nn.Module, optimizer: Optimizer, saved: Checkpoint, state: State, group: ProcessGroup | None
) -> None:
    """Fill weights and moments, whole or sharded, from a checkpoint of any number of processes. A collective call.

    Raises: CheckpointError.
    """
    restored: Any = get_optimizer_state_dict(model, optimizer)  # creates moments that do not exist yet
    read_shards(weights_of(model) | optimizer_tensors(restored), saved.folder, group)
    with refusing(saved.state):
        for name, values in restored["state"].items():
            values.update(state["optimizer"][name])
    set_optimizer_state_dict(model, optimizer, restored)


def temporary_folder(root: Path) -> Path:
    """Create an empty folder to write a checkpoint in, on its final file system."""
    folder = root / TEMPORARY
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def publish(
    root: Path,
    consumed_tokens: int,
    keep: int,
    run: str,
    written: Files,
    final: Collection[int] = (),
    records: Mapping[str, FileEntry] = MappingProxyType({}),
) -> Checkpoint:
    """Write the manifest, rename the folder to its final name, and delete what `prune` does not keep.

    `run` is the digest of the run. `written` are the entries of the folder's files, hashed as they were written, and
    `records` those of the run's records as the checkpoint continues them.
    """
    temporary = root / TEMPORARY
    folder = root / checkpoints.folder_name(consumed_tokens)
    manifest = {checkpoints.RUN: run, checkpoints.CONSUMED: consumed_tokens, checkpoints.SEEN: dict(records)}
    write_json(temporary / checkpoints.MANIFEST, manifest | {"files": dict(sorted(written.items()))})
    publish_folder(temporary, folder)
    (root / checkpoints.UNTRAINED).unlink(missing_ok=True)
    prune(root, consumed_tokens, keep, final)
    return Checkpoint(folder)


def prune(root: Path, newest: int, keep: int, final: Collection[int] = ()) -> None:
    """Delete all checkpoints but the newest `keep`, of which the newest is given, all in consumed tokens.

    Those of `final` are kept as well, and others between them are deleted, so that the final ones are the newest.
    Checkpoints after the newest are broken ones that the run did not resume from.
    """
    folders = {Checkpoint(folder).consumed_tokens: folder for folder in checkpoints.candidates(root)}
    # An ordinary checkpoint after the first final one would stand between two of them and goes at once; of those before
    # it, the newest stay until `keep` are there.
    older = [tokens for tokens in folders if tokens < newest]
    left = [tokens for tokens in older if tokens <= min(final, default=newest) or tokens in final]
    stay = {newest, *left[: keep - 1], *(tokens for tokens in final if tokens < newest)}
    for tokens in folders.keys() - stay:
        remove(folders[tokens])
