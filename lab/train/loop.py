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

import torch
from lightning.fabric import Fabric
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor
from torch.profiler import record_function

from lab.data.batch import Batch
from lab.data.module import PackedData
from lab.model.attention.segments import Segments
from lab.model.sharding import accumulating
from lab.train.checkpoint import Checkpointing
from lab.train.probe import Probing
from lab.train.record import Recording
from lab.train.state import StepStats, Stopping, TrainState


@dataclass(eq=False)
class LoopParts:
    """What the loop calls, in its order."""

    fabric: Fabric
    data: PackedData
    recording: Recording
    stopping: Stopping
    saving: Checkpointing
    probing: Probing


def train(parts: LoopParts, state: TrainState) -> None:
    """Train until the last step or a stop; first run a probe that is overdue since a resume."""
    data, recording, stopping = parts.data, parts.recording, parts.stopping
    saving, probing = parts.saving, parts.probing

    recording.open(state)
    probing.open(state)
    recording.pause()
    for number, pack in enumerate(packs_to_train(data, state, stopping), 1):
        is_last = number % state.recipe.train.accumulation == 0  # of the global batch
        if number == 1:
            settle_buckets(parts.fabric, state, pack.to(state.device))
        train_pack(parts, state, pack.to(state.device), is_last=is_last)
        # The host counts f and g here, while a GPU still computes what train_pack has queued.
        recording.count(pack)
        if not is_last:
            continue
        stats = read_statistics(state)
        # The line of a step comes before its checkpoint, whose manifest covers the records up to this step.
        recording.record(state, stats)
        # The sums of the step tell every rank whether any of them was signalled, so that all stop after the same step.
        stopping.check(state, stats)
        # Saving follows the check: a stop saves this step, while a step that is not finite must not be saved.
        saving.save_if_due(state)
        # A probe takes minutes. It comes last, when its weights are saved and a kill costs no step.
        probing.run_if_due(state)
        recording.pause()
    saving.finish()


def profile(parts: LoopParts, state: TrainState, profiler: torch.profiler.profile, n_packs: int) -> None:
    """Train on some packs without a record, a save or a probe, and tell a profiler of every pack."""
    for number, pack in enumerate(islice(packs_to_train(parts.data, state, parts.stopping), n_packs), 1):
        is_last = number % state.recipe.train.accumulation == 0
        train_pack(parts, state, pack.to(state.device), is_last=is_last)
        if is_last:
            read_statistics(state)
        profiler.step()


def packs_to_train(data: PackedData, state: TrainState, stopping: Stopping) -> Iterator[Batch]:
    """Yield this rank's packs until the last step or a stop; none for a run that has ended."""
    # A thread packs ahead of the training; closing the iterator ends it.
    with closing(data.batches()) as packs:
        while not (state.is_finished or stopping.stopped):
            yield next(packs)


def settle_buckets(fabric: Fabric, state: TrainState, batch: Batch) -> None:
    """Let DDP divide the gradients into their final buckets, before any step, by a pass of which nothing is left.

    It rebuilds them once in a process, in the order of the first backward pass. The index of an element in its bucket
    decides in which order three and more ranks are added up, so that the first step after a resume would differ.

    Source: torch/nn/parallel/distributed.py, `_pre_forward`.
    """
    if state.is_sharded or not distributed.is_initialized():
        return
    if distributed.get_world_size() > 2:  # two numbers have the same sum in any order
        fabric.backward(compute_loss(state, batch, stop=False))
        state.optimizer.zero_grad()
        state.sums.vector.zero_()


def train_pack(parts: LoopParts, state: TrainState, batch: Batch, *, is_last: bool) -> None:
    """Add the gradient of a pack, and update the weights after the last one of a global batch.

    The names are those of a profile.
    """
    with accumulation(parts.fabric, state, is_last=is_last), compilation(parts.stopping):
        with record_function("lab.forward"):
            loss = compute_loss(state, batch, stop=parts.stopping.is_asked)
        with record_function("lab.backward"):
            parts.fabric.backward(loss / state.recipe.train.accumulation)
    if is_last:
        with record_function("lab.update"):
            finish_gradient(state)
            update(state)


def accumulation(fabric: Fabric, state: TrainState, *, is_last: bool) -> AbstractContextManager[object]:
    """Return the context of a pack, in which gradients stay on their rank unless an update follows."""
    if is_last:
        return nullcontext()
    if not state.is_sharded:
        return fabric.no_backward_sync(state.model)
    # Fabric's context would also free the weights that FSDP2 gathers. And where they do not stay whole, every pack is
    # synchronised: a whole gradient would not fit either.
    return accumulating(state.decoder) if state.recipe.sharding.whole else nullcontext()


def compilation(stopping: Stopping) -> AbstractContextManager[object]:
    """Return the context of a pack, in which a run that is asked to stop compiles nothing: it has to save in time."""
    return torch.compiler.set_stance("eager_on_recompile") if stopping.is_asked else nullcontext()


def compute_loss(state: TrainState, batch: Batch, *, stop: bool) -> Tensor:
    """Return the summed loss of this rank's tokens of a pack over their budget, and add up what it was made of."""
    inputs = batch.inputs
    segments = Segments(inputs.cu_seqlens, batch.pack.lengths, inputs.tokens.shape[1], batch.pack.anchors)
    with state.precision():
        loss: Tensor = state.model(
            inputs.tokens,
            position_ids=inputs.position_ids,
            segments=segments,
            starts=batch.starts,
            context=state.context,
            targets=inputs.targets,
            loss_weights=inputs.weights,
        )
    weight: Tensor | int = batch.n_targets
    plain = loss
    if inputs.weights is not None:
        loss, plain = loss
        weight = inputs.weights.sum(dtype=torch.float64)

    # The sums stay on the device until the step ends: reading one here would wait for the forward pass. A Python number
    # is an argument of the kernel that adds it, while a tensor would first be copied to the device.
    sums = state.sums.views
    # All ranks of a context group have the same pack, so that the first counts its tokens. The loss is added by each of
    # them: each has computed that of its own part.
    counted = state.context is None or state.context.rank == 0
    sums["loss"].add_(plain.detach())
    sums["targets"].add_(batch.n_targets * counted)
    sums["tokens"].add_(segments.n_real * counted)
    sums["stop"].add_(float(stop))
    sums["weight"].add_(counted * weight)
    # The number of targets of the global batch is known only when all ranks have summed theirs. Until then the loss is
    # divided by the budget, which is the same for every pack and rank; finish_gradient puts that right.
    train = state.recipe.train
    return loss / (train.micro_batch_tokens // train.context_parallel)


def finish_gradient(state: TrainState) -> None:
    """Make the gradient that of the mean over the global batch, clip it, and skip the update unless it is finite.

    Source: torch/optim/adam.py, _fused_adam: `found_inf` is obeyed on the device, as under a gradient scaler.
    """
    trained = [parameter for parameter in state.decoder.parameters() if parameter.grad is not None]
    # The sums come first, in one collective call: every rank then has the same scale, and skips the same steps.
    if distributed.is_initialized():
        distributed.all_reduce(state.sums.vector)
    sums = state.sums.views

    # The loop and the strategies have averaged over packs and ranks, so that the gradient is a sum over batch_tokens.
    # A batch without any scored target has a gradient of 0, which a scale of inf would turn into NaN.
    weight = sums["weight"].masked_fill(sums["weight"] == 0, 1.0)
    scale = torch.full_like(weight, state.recipe.train.batch_tokens) / weight
    # A GPU multiplies the whole list in a few kernels only by a factor of its own dtype.
    torch._foreach_mul_([p.grad for p in trained if p.grad is not None], scale.to(trained[0].dtype))

    # The norm is that of the mean, hence after the scale. FSDP2 returns it as a DTensor, a part of it on each rank.
    norm = torch.nn.utils.clip_grad_norm_(trained, state.recipe.optim.clip_norm)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()

    # An `if` on this value would make the host wait for the device. The optimizer reads it there instead, and leaves
    # weights and moments as they are. One bad loss or gradient anywhere makes the sum or the norm of all ranks bad.
    bad = ~torch.isfinite(norm + sums["loss"])
    state.inner_optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
    state.sums.start_copy(norm, bad, state.inner_optimizer.param_groups[0]["lr"])


def update(state: TrainState) -> None:
    """Update the weights and the learning rate, without a wait for the device."""
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.schedule.step()


def read_statistics(state: TrainState) -> StepStats:
    """Read what was added up in a step, and count the step, also one that was skipped."""
    # The only wait of a step for the device. By now the update is queued, so that the device is not idle meanwhile.
    stats = state.last = state.sums.read()
    state.step += 1
    state.consumed += int(stats.sums["tokens"])
    state.skipped_steps += stats.skipped
    return stats
