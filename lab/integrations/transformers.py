"""A callback of transformers' Trainer that counts f and g and measures the retrieval range: ReachCallback.

    trainer = Trainer(model, args, processing_class=tokenizer, callbacks=[ReachCallback(window=2048, every_steps=500)])

It writes to `trainer.state.log_history` and to the tracker that the Trainer reports to. The counts are part of the
file trainer_state.json of checkpoints.
"""

import inspect
import os
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import CallbackHandler

from lab.core.errors import CheckpointError, ConfigError
from lab.core.files import read_object, write_json
from lab.integrations.counter import LOG
from lab.integrations.tokenizer_adapter import TextTokenizer
from lab.integrations.watcher import Watcher

COUNTS = "lab_reach_counts"  # key of the counts in trainer_state.json


class ReachCallback(TrainerCallback):
    """Probes every `every_steps` steps and at the end; `options` are those of lab.watch.

    `watch` is the watcher of the model that trains, from the start of a training on.
    """

    def __init__(self, *, window: int, every_steps: int = 500, tests: int = 64, **options: Any) -> None:
        if every_steps < 1:
            raise ConfigError(f"every_steps={every_steps}: must be >= 1; use the steps between two probes")
        self.every_steps, self.tests = every_steps, tests
        self.options = {"window": window, **options}
        self.watch: Watcher | None = None
        self.handler: CallbackHandler | None = None
        self.probed_step = 0

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: Any,
        control: TrainerControl,
        model: nn.Module | None = None,
        processing_class: TextTokenizer | None = None,
        **_: object,
    ) -> None:
        """Watch the model, from the counts of the checkpoint on that training resumes from.

        Raises: LabError for options and a tokenizer by which a probe is not possible.
        """
        if self.watch is not None:
            self.watch.close()
        self.handler = find_handler()
        if self.handler is None:
            LOG.warning("probes are written to the Trainer's log_history alone, as its trackers are not found")
        assert model is not None, "passed by the Trainer"
        self.watch = Watcher(model, processing_class, **self.options)
        self.watch.build_tests(self.tests)
        self.probed_step = state.global_step
        counts = state.stateful_callbacks.pop(COUNTS, {})
        if state.global_step:
            self.watch.load_state_dict(counts)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> TrainerControl:
        """Probe if it is due."""
        if state.global_step % self.every_steps == 0 or control.should_training_stop:
            return self.probe(args, state, control)
        return control

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> TrainerControl:
        """Probe after an early stop, before the Trainer loads the best model."""
        return self.probe(args, state, control) if control.should_training_stop else control

    def probe(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> TrainerControl:
        """Probe a step once, and log reach, and f and g at half of the window and beyond."""
        if self.watch is None or self.probed_step == state.global_step:
            return control
        self.probed_step = state.global_step
        logs = {**self.watch.summary(self.tests), "epoch": state.epoch}
        state.log_history.append({**logs, "step": state.global_step})
        if self.handler is not None:
            # on_log clears it, and the Trainer would not write the user's own entry, which is due after this one.
            should_log = control.should_log
            control = self.handler.on_log(args, state, control, logs)
            control.should_log = should_log
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Add the counts of all ranks to the checkpoint; a collective call."""
        if self.watch is None:
            return
        counts = self.watch.state_dict()
        # A search of hyperparameters has a folder for each trial. The newest file is the one just written.
        files = Path(args.output_dir or "").rglob(f"checkpoint-{state.global_step}/{TRAINER_STATE_NAME}")
        for file in sorted(files, key=os.path.getmtime)[-1:] if args.should_save else ():
            saved = read_object(file, CheckpointError, "save again")
            saved["stateful_callbacks"][COUNTS] = counts
            write_json(file, saved)


def find_handler() -> CallbackHandler | None:
    """Find the Trainer's handler, which has the trackers, among the callers: it passes callbacks all but itself."""
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, CallbackHandler):
            return caller
        frame = frame.f_back
    return None
