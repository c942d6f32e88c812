"""Write, publish and read a checkpoint's tensors through torch.distributed.checkpoint (DCP), while a run trains.

Each process writes what it holds: its shards, or its part of tensors that are replicated. A file's header names the
index of each shard in its tensor, in the form that DCP's own reader of safetensors takes. A file that holds whole
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
from lab.core.files import FileEntry, delete, publish_folder, write_hashed, write_json
from lab.core.types import Row
from lab.runs import checkpoints
from lab.runs.checkpoints import OPTIMIZER, SHARDING, TEMPORARY, WEIGHTS, Checkpoint, rejecting

Files = dict[str, FileEntry]
MOMENTS = "optimizer."  # begins the names of the optimizer's tensors


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

    def set_up_storage_writer(self, is_coordinator: bool, *args: object, **kwargs: object) -> None:
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
        items: dict[str, list[WriteItem]] = {WEIGHTS: [], OPTIMIZER: []}
        for item in plan.items:
            # A tensor with fewer rows than there are processes leaves some of them without a part of it.
            if item.tensor_data.chunk.sizes.numel():
                items[OPTIMIZER if item.index.fqn.startswith(MOMENTS) else WEIGHTS].append(item)
        results = []
        for prefix, written in items.items():
            if written:
                name = f"{prefix}{plan.storage_data:05d}.safetensors"
                entry = write_hashed(self.root / TEMPORARY / name, safetensors_parts(written, planner))
                results.append(WriteResult(MetadataIndex(name), entry["bytes"], entry))
        # The interface is asynchronous; this write is done.
        done: futures.Future[list[WriteResult]] = futures.Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the small files and publish, on process 0, once all processes have written their tensors."""
        entries = {name: write_hashed(self.root / TEMPORARY / name, [data]) for name, data in self.small.items()}
        for part in results:
            for result in part:
                entries[result.index.fqn] = result.storage_data
        self.publish(entries)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Reject to be chosen by a path."""
        return False


def safetensors_parts(items: list[WriteItem], planner: SavePlanner) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file in parts: the header, then each tensor, without a copy on a CPU.

    Source: the safetensors format, version 0.5: u64 length of the header, JSON header, bytes in the header's order.
    """
    dtypes = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    header: dict[str, object] = {}
    offsets = {}
    end = 0
    for item in items:
        name, chunk, dtype = item.index.fqn, item.tensor_data.chunk, item.tensor_data.properties.dtype
        start, end = end, end + chunk.sizes.numel() * dtype.itemsize
        header[name] = {"dtype": dtypes[dtype], "shape": list(chunk.sizes), "data_offsets": [start, end]}
        # The offsets of this part in its tensor, along each axis, by which DCP puts the parts together.
        offsets[name] = {"saved_offsets": list(chunk.offsets)}
    metadata = {SHARDING: json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
    encoded = json.dumps({"__metadata__": metadata, **header}).encode()
    # The tensors begin at a multiple of 8 bytes, so that they can be mapped into memory.
    encoded += b" " * (-len(encoded) % 8)
    yield struct.pack("<Q", len(encoded)) + encoded
    for item in items:
        tensor: Tensor = planner.resolve_data(item)  # type: ignore[assignment]
        yield memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())


def write_shards(
    tensors: dict[str, Tensor], writer: ShardWriter, group: ProcessGroup | None, *, background: bool
) -> Future[object] | None:
    """Write and publish a checkpoint; in the background from a copy of the tensors. A collective call.

    Raises: CheckpointError.
    """
    if background:
        return checkpoint.async_save(tensors, storage_writer=writer, process_group=group)
    with one_error(f"{writer.root}: no checkpoint could be written"):
        checkpoint.save(tensors, storage_writer=writer, process_group=group)
    return None


@contextmanager
def one_error(rule: str, fix: str = "") -> Iterator[None]:
    """Report the first error of any process as one line, the user's own errors as they are."""
    try:
        yield
    except checkpoint.CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        if isinstance(first, LabError):
            raise first from error
        raise CheckpointError(f"{rule} ({first_line(first)}){fix}") from error


def read_shards(tensors: dict[str, Tensor], folder: Path, group: ProcessGroup | None = None) -> None:
    """Fill tensors, or this process's shards of them, from a checkpoint's files.

    A collective call where there is a group, otherwise one process's own.

    Raises: CheckpointError for files that are broken or do not hold the tensors.
    """
    reader = checkpoint.HuggingFaceStorageReader(str(folder))
    # DCP would read every .safetensors file that the folder contains, also one that somebody has put there.
    listed = [str(path) for path in Checkpoint(folder).tensor_files()]
    reader.fs.ls = lambda path: listed  # type: ignore[method-assign]
    with one_error(f"{folder}: cannot be read", "; use another checkpoint"):
        checkpoint.load(tensors, storage_reader=reader, process_group=group, no_dist=group is None)


def packed(state: Mapping[str, object]) -> bytes:
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
    names = model.named_parameters(remove_duplicate=False)
    return {name: first[parameter] for name, parameter in names if first[parameter] != name}


def split_optimizer(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Split an optimizer's state into the moments, named by their parameters, and the numbers of each parameter."""
    moments: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Tensor]] = {}
    for name, values in state["state"].items():
        numbers[name] = {}
        for key, value in values.items():
            if value.ndim:
                moments[f"{MOMENTS}{name}.{key}"] = value
            else:
                numbers[name][key] = value.cpu()
    return moments, numbers


def tensors_to_save(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Return the tensors of a checkpoint by name, and the remaining state: each parameter's steps, and shared names."""
    state: Any = get_optimizer_state_dict(model, optimizer)
    moments, numbers = split_optimizer(state)
    return weights_of(model) | moments, {"optimizer": numbers, "shared": shared_names(model)}


def restore_tensors(
    model: nn.Module, optimizer: Optimizer, saved: Checkpoint, state: Row, group: ProcessGroup | None
) -> None:
    """Fill weights and moments, whole or sharded, from a checkpoint of any number of processes. A collective call.

    Raises: CheckpointError.
    """
    restored: Any = get_optimizer_state_dict(model, optimizer)  # creates moments that do not exist yet
    moments, _ = split_optimizer(restored)
    read_shards(weights_of(model) | moments, saved.folder, group)
    with rejecting(saved.state):
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
    records: Mapping[str, FileEntry] = {},
    stable: int | None = None,
) -> Checkpoint:
    """Write the manifest, rename the folder to its final name, and delete what `prune` does not keep.

    `run` is the digest of the run. `written` are the entries of the folder's files, hashed as they were written, and
    `records` those of the run's records as the checkpoint continues them.
    """
    temporary = root / TEMPORARY
    folder = root / checkpoints.folder_name(consumed_tokens)
    manifest = {
        checkpoints.RUN: run,
        checkpoints.CONSUMED: consumed_tokens,
        checkpoints.SEEN: records,
        "files": dict(sorted(written.items())),
    }
    write_json(temporary / checkpoints.MANIFEST, manifest)
    publish_folder(temporary, folder)
    (root / checkpoints.UNTRAINED).unlink(missing_ok=True)
    prune(root, consumed_tokens, keep, final, stable)
    return Checkpoint(folder)


def prune(root: Path, newest: int, keep: int, final: Collection[int] = (), stable: int | None = None) -> None:
    """Delete all checkpoints but the newest `keep`, of which the newest is given, all in consumed tokens.

    The one before the decay is kept, from which a longer run continues. Those of `final` are kept as well, and others
    between them are deleted, so that the final ones are the newest.
    Checkpoints after the newest are broken ones that the run did not resume from.
    """
    folders = {Checkpoint(folder).consumed_tokens: folder for folder in checkpoints.candidates(root)}
    # An ordinary checkpoint after the first final one would lie between two of them and goes at once; of those before
    # it, the newest stay until `keep` are there.
    first_final = min({*final} - {stable}, default=newest)
    left = [tokens for tokens in folders if tokens < newest and (tokens <= first_final or tokens in final)]
    for tokens, folder in folders.items():
        if tokens not in (newest, *left[: keep - 1]) and not (tokens in final and tokens < newest):
            delete(folder)
