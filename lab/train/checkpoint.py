"""Saves checkpoints by consumed tokens, when stopped and at the end, each whole or absent; restores one at the start.

A background save writes a copy of the tensors while the run trains. There is one at a time: the next save, a stop and
the end wait for it. One that fails ends the run at the next step, or between two lengths of a probe.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field

from torch import distributed

from lab.core.errors import CheckpointError
from lab.data.module import PackedData
from lab.model.sharding import reshard
from lab.runs import checkpoints, shards
from lab.runs.checkpoints import RECORDS, add_to_manifest
from lab.runs.folder import packed_counts
from lab.runs.recovery import check_state, read_state
from lab.runs.shards import Files, ShardWriter, one_error, packed, restore_tensors, tensors_to_save, write_shards
from lab.train.record import Recording
from lab.train.starting import Start
from lab.train.state import Stopping, TrainState


def interval_passed(every_tokens: int | None, before: int, now: int) -> bool:
    """Return whether a multiple of `every_tokens` is between two numbers of consumed tokens.

    A step consumes fewer tokens than its budget if packs are not full, so that no step need end at a multiple.

    Example:
        >>> interval_passed(100, before=90, now=105), interval_passed(100, before=105, now=190)
        (True, False)
    """
    return every_tokens is not None and now // every_tokens > before // every_tokens


@dataclass(eq=False)
class Checkpointing:
    """Saves after the record of a step, and before its probe, which saves what is not saved yet."""

    start: Start
    data: PackedData
    recording: Recording
    stopping: Stopping
    saved_at: int = 0
    final: dict[int, int] = field(default_factory=dict)  # consumed tokens of the checkpoints of kept_steps
    run: str = ""  # its digest, on the first rank
    group: distributed.ProcessGroup | None = None
    writing: Future[object] | None = None

    def __post_init__(self) -> None:
        """Look up the settings and the folder, and the steps of checkpoints that are kept."""
        self.config, self.folder = self.start.experiment.train, self.start.folder
        # A longer run continues from the step before the decay; 0 without one, which no step is.
        decay_steps = self.start.experiment.optim.decay_steps(self.config.batch_tokens)
        self.stable_steps = self.config.steps - (decay_steps or self.config.steps)
        self.kept_steps = {*self.config.final_steps, self.stable_steps}

    def open(self, state: TrainState) -> None:
        """Restore the checkpoint that the run starts from; a collective call.

        Raises: CheckpointError.
        """
        if self.start.launch.is_first:
            self.run = checkpoints.read_run_manifest(self.folder.path)[0]
        if distributed.is_initialized():
            # A background save talks to its peers while the training does: in one group their calls would be mixed up.
            self.group = distributed.new_group(backend="gloo")
        if self.start.restored is not None:
            self.restore(state, self.start.restored)
        self.saved_at = state.consumed

    def save_if_due(self, state: TrainState) -> None:
        """Save when an interval has passed, and on a signal."""
        if self.stopping.error:  # the step that failed must not replace the checkpoint to resume from
            return
        is_kept = state.step in self.kept_steps
        if is_kept:
            self.final[state.step] = state.consumed
        due = is_kept or interval_passed(self.config.checkpoint_every_tokens, self.saved_at, state.consumed)
        if due or self.stopping.stopped:
            self.save(state, background=self.config.async_checkpoints and not self.stopping.stopped)

    def save(self, state: TrainState, *, background: bool = False) -> None:
        """Save a checkpoint of this step, unless it has one; a collective call.

        Raises: CheckpointError where this one, or the one before, cannot be written, or the parts do not agree.
        """
        # A background save of this step may still be running; the probe that asks for it need not wait.
        if self.saved_at == state.consumed:
            return
        self.finish()
        root = self.folder.checkpoints
        consumed = state.consumed
        counting = self.recording.counting
        counts = counting.total()
        # Each rank writes its own shards, while a forward pass without gradients leaves the whole weights gathered.
        reshard(state.decoder)
        tensors, rest = tensors_to_save(state.decoder, state.inner_optimizer)
        final = dict(self.final)
        saved = rest | {
            "step": state.step,
            "consumed_tokens": consumed,
            "skipped_steps": state.skipped_steps,
            "schedule": state.schedule.state_dict(),
            "data": self.data.state_dict(),
            "recording": {
                "counts": counts.to_dict() | counting.selected() | counting.corpus_tokens(),
                "sums": self.recording.sums,
            },
            "final": final,
        }
        # What a resume would reject is rejected here, while the checkpoint before it is still there.
        try:
            check_state(saved)
        except ValueError as error:
            raise CheckpointError(
                f"{root / checkpoints.folder_name(consumed)}: is not saved ({error}); resume from the one before it"
            ) from error

        # The records are on the disk before the checkpoint that continues them, or a loss of power could part the two.
        records = add_to_manifest(self.folder.path, RECORDS) if self.start.launch.is_first else {}

        # Runs once the tensors of all ranks are written, in the thread of a background save. It therefore takes the
        # counts of this step, not those that the training has by then.
        def publish(files: Files) -> None:
            # The first counts come before their checkpoint: a kill between the two leaves no checkpoint without counts.
            # Later ones come after it, as those before are still of a checkpoint.
            is_first = not (self.folder.path / checkpoints.COUNTS).exists()
            if is_first:
                self.folder.write_counts(counts)
            keep, stable = self.config.keep_checkpoints, final.get(self.stable_steps)
            shards.publish(root, consumed, keep, self.run, files, tuple(final.values()), records, stable)
            if not is_first:
                self.folder.write_counts(counts)

        small = {checkpoints.STATE: packed(saved), checkpoints.COUNTS: packed_counts(counts)}
        self.writing = write_shards(tensors, ShardWriter(root, small, publish), self.group, background=background)
        if self.writing is not None:
            self.writing.add_done_callback(self.stop_on_failure)
        self.saved_at = consumed

    def stop_on_failure(self, writing: Future[object]) -> None:
        """Ask all ranks to stop, as a signal does, if a save has failed; `finish` raises its error on each of them."""
        self.stopping.is_asked |= writing.exception() is not None

    def restore(self, state: TrainState, checkpoint: checkpoints.Checkpoint) -> None:
        """Continue at a checkpoint, under any number of processes; before any batch. A collective call.

        Raises: CheckpointError.
        """
        saved = read_state(checkpoint)
        optimizer = state.inner_optimizer
        restore_tensors(state.decoder, optimizer, checkpoint, saved, self.group)
        if self.start.difference:
            return  # the data of the run are others, so that all else begins at 0
        state.step = saved["step"]
        state.consumed = saved["consumed_tokens"]
        state.skipped_steps = saved["skipped_steps"]
        state.schedule.load_state_dict(dict(saved["schedule"]))
        # LambdaLR sets the optimizer's rate only when it steps, which is after the first update.
        for param_group, lr in zip(optimizer.param_groups, state.schedule.get_last_lr(), strict=True):
            param_group["lr"] = lr
        self.data.load_state_dict(saved["data"])
        if self.start.launch.is_first:
            self.recording.counting.load_state_dict(saved["recording"]["counts"])
        self.recording.sums = saved["recording"]["sums"]
        self.final = {step: at for step, at in saved["final"].items() if step in self.kept_steps}

    def finish(self) -> None:
        """Wait for a save in the background.

        Raises: CheckpointError where it could not be written.
        """
        if self.writing is not None:
            with one_error(f"{self.folder.checkpoints}: no checkpoint could be written"):
                self.writing.result()
            self.writing = None
