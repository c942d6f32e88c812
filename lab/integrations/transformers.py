"""A callback of transformers' Trainer that counts f and g and measures the retrieval range: ReachCallback.

    trainer = Trainer(model, args, processing_class=tokenizer, callbacks=[ReachCallback(window=2048, every_steps=500)])

It writes to `trainer.state.log_history` and to the tracker that the Trainer reports to. The counts are part of the
file trainer_state.json of checkpoints. `metric_for_best_model="retrieval/reach"` selects the best model by reach.
"""

import inspect
import math
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from lab.core.errors import ConfigError
from lab.integrations.trackers import log_probe
from lab.integrations.watcher import LOGGED, Watcher

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
        self.probed_step = -1

    def on_train_begin(self, args: TrainingArguments, state: Any, control: TrainerControl, **passed: Any) -> None:
        """Watch the model, from the counts of the checkpoint on that training resumes from.

        Raises: LabError for options and a tokenizer by which a probe is not possible.
        """
        if self.watch is not None:
            self.watch.close()
        self.watch = Watcher(passed["model"], passed["processing_class"], **self.options)
        self.watch.build_tests(self.tests)
        self.probed_step = state.global_step
        self.values: dict[str, float] = {}  # of the last probe
        if state.global_step:
            self.watch.load_state_dict(state.stateful_callbacks.pop(COUNTS, {}))

    def on_step_end(self, args: TrainingArguments, state: Any, control: TrainerControl, **_: object) -> None:
        """Probe if it is due, and log; give the counts of all ranks to a state that is saved; a collective call.

        A probe is also due before an evaluation by which `metric_for_best_model` selects, if it is of a probe.
        """
        assert self.watch is not None, "training has started"
        step = state.global_step
        selects = control.should_evaluate and "retrieval/" in str(args.metric_for_best_model)
        if self.probed_step != step and (step % self.every_steps == 0 or control.should_training_stop or selects):
            self.probed_step = step
            self.values = self.watch.summary(self.tests)
            logs = {**self.values, "epoch": state.epoch}
            state.log_history.append({**logs, "step": step})
            # on_log clears it, and the Trainer would not write the user's own entry, which is due after this one.
            handler, should_log = find_handler(), control.should_log
            handler.on_log(args, state, control, logs)
            control.should_log = should_log
            for callback in handler.callbacks:
                # The names in transformers' own callbacks of TensorBoard and wandb.
                tracker = getattr(callback, "tb_writer", getattr(callback, "_wandb", None))
                if state.is_world_process_zero:
                    log_probe(tracker, self.watch, step)
        # An evaluation may decide that its step is saved, as the best one.
        if control.should_save or control.should_evaluate:
            state.stateful_callbacks[COUNTS] = self.watch.state_dict()

    # An evaluation may stop the training. The Trainer loads the best model after the end of the epoch.
    on_epoch_end = on_step_end

    def on_evaluate(self, args: TrainingArguments, state: Any, control: TrainerControl, **passed: Any) -> None:
        """Add the values of a probe of this step to the metrics, as eval_retrieval/reach and others.

        The Trainer selects by numbers: a value that is not determined is nan, which is never the best.
        """
        if self.probed_step == state.global_step:
            for name in LOGGED:
                passed["metrics"][f"eval_retrieval/{name}"] = self.values.get(f"retrieval/{name}", math.nan)

    def on_train_end(self, *_: object, **__: object) -> None:
        """Keep the values from later evaluations, as the Trainer may have loaded the best model."""
        self.probed_step = -1


def find_handler() -> CallbackHandler:
    """Find the Trainer's handler, which has the trackers, among the callers: it passes callbacks all but itself."""
    frame = inspect.currentframe()
    while frame is not None and not isinstance(frame.f_locals.get("self"), CallbackHandler):
        frame = frame.f_back
    assert frame is not None, "a Trainer calls its callbacks by it"
    handler: CallbackHandler = frame.f_locals["self"]
    return handler
