"""A callback of transformers' Trainer that counts f and g and measures the retrieval range: ReachCallback.

    trainer = Trainer(model, args, train_dataset=..., processing_class=tokenizer)
    trainer.add_callback(ReachCallback(trainer, window=2048, every_steps=500))

It logs by `trainer.log`, into the tracker that the Trainer reports to.
"""

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from lab.integrations.watcher import Watcher

COUNTS = "reach_counts.json"  # next to the Trainer's own files of a checkpoint


class ReachCallback(TrainerCallback):
    """Probes every `every_steps` steps and at the end; `options` are those of lab.watch. `watch` is the watcher."""

    def __init__(self, trainer: Any, *, window: int, every_steps: int = 500, tests: int = 64, **options: Any) -> None:
        self.trainer, self.every_steps, self.tests = trainer, every_steps, tests
        self.watch = Watcher(trainer.model, trainer.processing_class, window=window, **options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Load the counts of the checkpoint that training resumes from."""
        if state.global_step == 0:
            return
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if isinstance(args.resume_from_checkpoint, str):
            folder = Path(args.resume_from_checkpoint)
        try:
            self.watch.load_state_dict(json.loads((folder / COUNTS).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            self.watch.counter.note(error)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Probe if it is due, and log reach, and f and g at half of the window and beyond."""
        if state.global_step % self.every_steps == 0 or state.global_step == state.max_steps:
            self.trainer.log(self.watch.summary(self.tests))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the counts of all ranks with the checkpoint; a collective call."""
        counts = self.watch.state_dict()
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir():
            (folder / COUNTS).write_text(json.dumps(counts), encoding="utf-8")
