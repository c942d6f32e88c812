"""Probe effective length and held-out loss during training, at intervals of consumed tokens and at the end.

A probe follows the checkpoint of its step, which may still be written in the background. Where the model is sharded,
its weights are gathered once, into a whole copy that lasts as long as the probe. Every rank then runs its own tests
without waiting for the others. A signal ends a probe between two lengths, and nothing of it is recorded. A resumed run
finds from the records that a probe is due, and runs all of it before its first step.

A probe that fails on any rank is recorded as failed, and training goes on; --resume at its step runs it again. A rank
that fails joins the next `exchange` of the others, so that all of them fail there, and none waits. Where another
collective call fails on one rank, the others wait in it, so that the run must end: OutOfStep.
"""

from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from lab.config import Experiment
from lab.core.command import show
from lab.core.errors import ConfigError, DiskError, first_line
from lab.core.launch import OutOfStep, WorkFailed, exchange
from lab.counts import PositionCounts
from lab.data.preparation import shard_folder
from lab.data.text_files import read_texts
from lab.data.tokenizer import end_of_document, load_tokenizer
from lab.model.decoder import Decoder
from lab.model.devices import processor
from lab.model.sharding import allocate, fill
from lab.positions.methods import describe_pair
from lab.probe.effective_distance import DistanceProbe, NoRoom, build_distance_probe
from lab.probe.effective_length import NeedleProbe
from lab.probe.measuring import HeldOutLoss, Measuring, ModelInTraining, Probed, held_out_recall
from lab.probe.needles import KEPT, hash_text, load_haystack
from lab.probe.probe import Worker
from lab.runs.checkpoints import RECORDS, add_to_manifest, folder_name
from lab.runs.folder import RunFolder
from lab.train.checkpoint import Checkpointing, interval_passed
from lab.train.environment import describe_source
from lab.train.record import Recording
from lab.train.state import Stopping, TrainState, describe_error


@dataclass(eq=False)
class Probing:
    """Runs the probe between two steps, without torch's random numbers or any change to weights, modes and buffers."""

    recording: Recording
    stopping: Stopping
    saving: Checkpointing
    probed_at: int = 0

    def __post_init__(self) -> None:
        """Look up the settings and this process."""
        self.experiment, self.launch = self.recording.experiment, self.recording.launch

    def open(self, state: TrainState) -> None:
        """Set up the probe before the first step, so that errors are reported early, and run an overdue one."""
        data, config = self.experiment.data, self.experiment.probe
        if config is None:
            return
        losses, recall = [], None
        if config.loss_tokens:
            for part in data.parts:
                loss = HeldOutLoss(
                    part,
                    tokens=config.loss_tokens,
                    pack_tokens=self.experiment.train.micro_batch_tokens,
                    rank=self.launch.rank,
                    world_size=self.launch.world_size,
                    device=state.device,
                )
                losses.append(loss)
            recall = held_out_recall(data, self.experiment.evidence, state.device)
        probe = make_needle_probe(self.experiment, state.device)
        self.measuring = Measuring(probe, build_distance_probe(probe), losses, recall, data.weights)
        # Only the first rank is sure to read the latest records: other nodes may see an older file for a while.
        self.probed_at = exchange(self.recording.folder.last_probe())[0]
        if (state.is_finished and self.probed_at < state.consumed) or self.is_due(state):
            self.run(state)

    def run_if_due(self, state: TrainState) -> None:
        """Save and probe when an interval has passed and after the last step, unless the run stops here."""
        if self.stopping.stopped:
            return
        if state.is_finished or self.is_due(state):
            self.saving.save(state, background=self.saving.config.async_checkpoints)
            if self.experiment.probe is not None:
                self.run(state)

    def is_due(self, state: TrainState) -> bool:
        probe = self.experiment.probe
        return probe is not None and interval_passed(probe.every_tokens, self.probed_at, state.consumed)

    def run(self, state: TrainState) -> None:
        """Probe and record, also that it failed; a collective call. A signal ends it with nothing recorded."""
        counts = self.recording.counting.total()
        tokens = self.recording.counting.corpus_tokens()
        outcome: Probed | str | None
        try:
            try:
                outcome = self.measure(state, counts)
            except (WorkFailed, OutOfStep):
                raise
            except Exception as error:  # any: what the probe measures must not end the run
                # This joins whichever exchange the other ranks are in, and raises WorkFailed in all of them.
                exchange(None, describe_error(error))
            # A rank that is done meets those that are still testing here: one of them may yet fail.
            exchange(None)
        except WorkFailed as error:
            outcome = str(error)
        if outcome is None:  # a signal: the resumed run probes again
            return
        if not isinstance(outcome, str):
            outcome[0][-1].update(tokens)
        if self.launch.is_first:
            self.record(state, outcome, counts)
        self.probed_at = state.consumed

    def measure(self, state: TrainState, counts: PositionCounts) -> Probed | None:
        """Run this rank's tests and measure its part of the loss; None where a signal ends it."""
        model = ModelInTraining(self.gather_weights(state), self.measuring.probe.stop_id, state.precision)
        worker = Worker(self.launch.rank, self.launch.world_size, lambda rows: [*chain(*exchange(rows))])

        # Called by all ranks after each length, which is where they can agree to end the probe.
        def goes_on(line: str) -> bool:
            self.recording.report(line)
            return not self.stopping.agree()

        subject = describe_probed(self.experiment, state.device, state.consumed)
        return self.measuring.run(model, worker, subject, counts, goes_on)

    def gather_weights(self, state: TrainState) -> Decoder:
        """Return the model, or a whole copy where it is sharded; a collective call.

        Raises: WorkFailed where a rank has no room for the copy, before any of them gathers; OutOfStep.
        """
        decoder = state.decoder
        if not state.is_sharded:
            return decoder
        copy = allocate(state.recipe.make, state.recipe.sharding.dtype, state.device)
        # A rank without room fails above, and the others fail with it here, before they wait for it in `fill`.
        exchange(None)
        try:
            fill(copy, decoder)
        except Exception as error:
            raise OutOfStep(describe_error(error)) from error
        return copy

    def record(self, state: TrainState, outcome: Probed | str, counts: PositionCounts) -> None:
        """Write what a probe found, or that it failed and why; also where it cannot be written."""
        folder, consumed = self.recording.folder, state.consumed
        if not isinstance(outcome, str):
            lines, cases = outcome
            try:
                folder.write_counts(counts, consumed)
                folder.write_cases(consumed, cases)
                folder.append("probes.jsonl", *lines)
                files = [path.relative_to(folder.path).as_posix() for path in folder.files_of_probe(consumed)]
                add_to_manifest(folder.path, [*files, *RECORDS])
                self.recording.mirror(lines[-1])
                return
            except Exception as error:  # any, such as a full disk
                outcome = describe_error(error)
        show(f"the probe at {consumed:,} tokens failed ({outcome}); training goes on", error=True)
        with suppress(OSError, DiskError):
            subject = describe_probed(self.experiment, state.device, consumed)
            folder.append("probes.jsonl", {**subject, "failed": outcome})


def check_tests(experiment: Experiment, folder: Path) -> None:
    """Reject settings of the probe that leave no test in the tokenizer of a folder, before there is a text to test on.

    Raises: ConfigError with all their errors, DataError.
    """
    errors: list[str] = []
    for probe in (NeedleProbe, DistanceProbe)[: 1 + bool(experiment.tests.distance_tests)]:
        try:
            probe(experiment.tests, load_tokenizer(folder), "", window=experiment.data.window, stop_id=None)
        except NoRoom as error:
            show(f"{first_line(error)}; this run measures no reach")
        except ConfigError as error:
            errors += error.errors
    if errors:
        raise ConfigError(*errors)


def check_haystack(experiment: Experiment) -> None:
    """Reject a file whose text is not the one that earlier probes of a resumed run hid numbers in.

    Raises: ConfigError.
    """
    path, folder = experiment.probe_section.haystack, RunFolder(experiment.run.path)
    if path is None or (folder.path / KEPT).exists():  # the text that the folder keeps is read in place of the file
        return
    recorded = [row["haystack"] for row in folder.records("probes.jsonl") if "haystack" in row]
    if recorded and recorded[-1] != hash_text("\n".join(read_texts(Path(path), "probe.haystack"))):
        raise ConfigError(f"probe.haystack={path}: is not the text of the run's earlier probes; restore the file")


def make_needle_probe(experiment: Experiment, device: torch.device) -> NeedleProbe:
    """Build the probe of a config on its corpus's tokenizer and haystack."""
    data = experiment.data
    path = experiment.probe_section.haystack
    tokenizer = load_tokenizer(shard_folder(data))
    probe = NeedleProbe(
        experiment.tests,
        tokenizer,
        load_haystack(path, data, tokenizer, experiment.run.path),
        window=data.window,
        stop_id=end_of_document(data, tokenizer),
        device=device,
        source=None if path is None else f"probe.haystack={path}",
    )
    probe.check_haystack(probe.lengths[-1])
    return probe


def describe_probed(experiment: Experiment, device: torch.device, consumed_tokens: int) -> dict[str, object]:
    """Describe the model that a probe during training measures; `weights` have no hash before they are saved."""
    position = experiment.position
    method = describe_pair(position.frequency, position.distance)
    return {
        **describe_source(experiment.run.path.name, consumed_tokens, method, processor(device)),
        "checkpoint": folder_name(consumed_tokens),
        "weights": None,
        "precision": "bfloat16" if experiment.train.bf16 else "float32",
    }
