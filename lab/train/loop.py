"""The training loop, from a pack to a probe, in the order in which it happens.

    for every pack:            pack, forward, loss, backward, count
    for every global batch:    sums over ranks, scale, clip, finite or skip, update, read, record, stop, save, probe

The gradient is the mean over all scored tokens of the global batch. With loss weights w it is that of sum of w * loss
over sum of w, both over the global batch; the loss that is recorded stays the plain mean.

With `train.context_parallel` that many ranks share a pack. Each computes a part of it, and the first counts the whole.
A step whose loss or gradient is not finite changes neither weights nor optimizer.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from lightning.fabric import Fabric
from torch import Tensor, distributed, nn
from torch.profiler import record_function

from lab.data.batch import Batch
from lab.data.module import PackedData
from lab.model.attention.segments import Segments
from lab.model.config import CLIP_NORM
from lab.model.sharding import accumulating
from lab.train.checkpoint import Checkpointing
from lab.train.probe import Probing
from lab.train.record import Recording
from lab.train.signals import Stopping
from lab.train.state import StepStats, TrainState


@dataclass(frozen=True)
class Parts:
    """What the loop calls, in its order."""

    fabric: Fabric
    data: PackedData
    recording: Recording
    stopping: Stopping
    saving: Checkpointing
    probing: Probing


class Profiler(Protocol):
    """What `profile` tells of every pack, as torch.profiler.profile."""

    def step(self) -> None:
        """Note that the work of a pack has been queued, with that of an update if one follows it."""


def train(parts: Parts, state: TrainState) -> None:
    """Train until the last step or a stop; first run a probe that is overdue since a resume."""
    data, recording, stopping = parts.data, parts.recording, parts.stopping
    saving, probing = parts.saving, parts.probing

    recording.open(state)
    probing.open(state)
    recording.pause()
    for number, pack in enumerate(packs_to_train(data, state, stopping), 1):
        is_last = number % state.recipe.train.accumulation == 0  # of the global batch
        train_pack(parts, state, pack.to(state.device), is_last=is_last)
        recording.count(pack)
        if not is_last:
            continue
        stats = read_statistics(state)
        recording.record(state, stats)
        stopping.check(state, stats)
        saving.save_if_due(state)
        probing.run_if_due(state)
        recording.pause()
    saving.finish()


def profile(parts: Parts, state: TrainState, profiler: Profiler, steps: int) -> None:
    """Take some steps without a record, a save or a probe, and tell a profiler of every pack."""
    packs = islice(packs_to_train(parts.data, state, parts.stopping), steps * state.recipe.train.accumulation)
    for number, pack in enumerate(packs, 1):
        is_last = number % state.recipe.train.accumulation == 0
        train_pack(parts, state, pack.to(state.device), is_last=is_last)
        if is_last:
            read_statistics(state)
        profiler.step()


def train_pack(parts: Parts, state: TrainState, batch: Batch, *, is_last: bool) -> None:
    """Add the gradient of a pack, and update the weights after the last one of a global batch.

    The names are those of a profile.
    """
    with accumulation(parts.fabric, state, is_last=is_last):
        with record_function("lab.forward"):
            loss = compute_loss(state, batch, stop=parts.stopping.is_asked)
        with record_function("lab.backward"):
            parts.fabric.backward(loss / state.recipe.train.accumulation)
    if is_last:
        with record_function("lab.update"):
            finish_gradient(state)
            update(state)


def packs_to_train(data: PackedData, state: TrainState, stopping: Stopping) -> Iterator[Batch]:
    """Yield this rank's packs until the last step or a stop; none for a run that has ended."""
    with closing(data.batches()) as packs:
        while not (state.is_finished or stopping.stopped):
            yield next(packs)


def accumulation(fabric: Fabric, state: TrainState, *, is_last: bool) -> AbstractContextManager[Any]:
    """Return the context of a pack, in which gradients stay on their rank unless an update follows.

    Fabric's own context also frees what FSDP2 gathers, so that it serves DDP only. Where the weights do not stay whole,
    every pack is synchronised, as its gradient would not fit either.
    """
    if is_last:
        return nullcontext()
    if state.is_sharded:
        return accumulating(state.decoder) if state.recipe.sharding.whole else nullcontext()
    return fabric.no_backward_sync(state.model)


def compute_loss(state: TrainState, batch: Batch, *, stop: bool) -> Tensor:
    """Return the summed loss of this rank's tokens of a pack over their budget, and add up what it was made of."""
    inputs, runs = batch.inputs, batch.runs
    segments = Segments(inputs.cu_seqlens, runs.lengths, inputs.tokens.shape[1], runs.anchors)
    with state.precision():
        loss: Tensor = state.model(
            inputs.tokens,
            position_ids=inputs.position_ids,
            segments=segments,
            starts=runs.starts or (),
            context=state.context,
            targets=inputs.targets,
            loss_weights=inputs.weights,
        )
        loss, plain = (loss, loss) if inputs.weights is None else loss

    # a number is an argument of the kernel that adds it, not a copy to the device
    sums = state.sums.views_on(loss.device)
    counted = state.context is None or state.context.rank == 0  # the others of a group have the same pack
    weight = runs.n_targets if inputs.weights is None else inputs.weights.sum(dtype=torch.float64)
    sums["loss"].add_(plain.detach())
    sums["targets"].add_(runs.n_targets * counted)
    sums["tokens"].add_(segments.n_real * counted)
    sums["stop"].add_(float(stop))
    sums["weight"].add_(counted * weight)
    train = state.recipe.train
    return loss / (train.micro_batch_tokens // train.context_parallel)


def finish_gradient(state: TrainState) -> None:
    """Make the gradient that of the mean over the global batch, clip it, and skip the update unless it is finite."""
    trained = [parameter for parameter in state.decoder.parameters() if parameter.grad is not None]
    sum_over_ranks(state)
    scale_gradient(state, trained)
    norm = clip_gradient(trained)
    skip_unless_finite(state, norm)


def sum_over_ranks(state: TrainState) -> None:
    """Add up the sums of a step over all ranks, in one collective call."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(state.sums.vector)


def scale_gradient(state: TrainState, trained: list[nn.Parameter]) -> None:
    """Make the gradient that of the mean over the global batch.

    The loop and the strategies have averaged over packs and ranks. What is missing is budget / targets, or budget / the
    sum of their loss weights.
    """
    weight = state.sums.views()["weight"]
    scale = torch.full_like(weight, state.recipe.train.batch_tokens) / weight.masked_fill(weight == 0, 1.0)
    # a GPU multiplies the whole list in a few kernels only by a factor of its own dtype
    torch._foreach_mul_([p.grad for p in trained if p.grad is not None], scale.to(trained[0].dtype))


def clip_gradient(trained: list[nn.Parameter]) -> Tensor:
    """Cut the gradient to CLIP_NORM, and return its norm before."""
    norm = torch.nn.utils.clip_grad_norm_(trained, CLIP_NORM)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def skip_unless_finite(state: TrainState, norm: Tensor) -> None:
    """Let the optimizer skip a step that is not finite, and start the copy of the step's sums to the host.

    Sums and norm are those of all ranks, so that all of them skip the same steps.

    Source: torch/optim/adam.py, _fused_adam: `found_inf` is obeyed on the device, as under a gradient scaler.
    """
    bad = ~torch.isfinite(norm + state.sums.views()["loss"])
    state.inner_optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
    state.sums.close(norm, bad, state.lr)


def update(state: TrainState) -> None:
    """Update the weights and the learning rate, without a wait for the device."""
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.schedule.step()


def read_statistics(state: TrainState) -> StepStats:
    """Read what was added up in a step, and count the step."""
    stats = state.last = state.sums.read()
    state.step += 1
    state.consumed += int(stats.sums["tokens"])
    state.skipped_steps += stats.skipped
    return stats
