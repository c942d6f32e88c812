"""Where the time of a few steps goes: phases by the hooks that Lightning calls, operations by torch.profiler.

Lightning names every call of a hook: `[Strategy]FullySharded.backward`, `[Callback]Counting.on_train_batch_end`. Each
such call belongs to a phase, or to that of the call around it; a phase's time leaves out what other phases take inside
it. On a GPU the host waits for it wherever the phase changes, so that a phase's time is that of its kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import Profiler
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from lab.files import write_atomic
from lab.train.callbacks.checkpointing import Checkpointing
from lab.train.callbacks.probing import Probing
from lab.train.callbacks.progress import Progress
from lab.train.callbacks.stopping import Stopping

SKIPPED, WARMING, PROFILED = 2, 1, 3  # steps: compilation and the allocator's growth, the profiler's own, the table's
STEPS = SKIPPED + WARMING + PROFILED
ENDS = {  # of the names of calls
    "train_dataloader_next": "data",
    "batch_to_device": "data",
    "training_step": "forward",
    "backward": "backward",
    "optimizer_step": "optimizer",
    "optimizer_zero_grad": "optimizer",
}
REST = "the loop between them"
PHASES = (*dict.fromkeys(ENDS.values()), "callbacks", REST)
OPERATIONS, NAME_WIDTH = 25, 60  # rows of the table, and characters of a name


def phase_of(call: str) -> str | None:
    """Return the phase that a call of Lightning's begins.

    Example:
        >>> phase_of("[Strategy]DDPStrategy.backward"), phase_of("[Callback]Counting.setup"), phase_of("other")
        ('backward', 'callbacks', None)
    """
    return "callbacks" if call.startswith("[Callback]") else ENDS.get(call.rpartition(".")[2])


class Phases(Profiler):
    """Adds up the seconds of each phase, and names it in the trace."""

    def __init__(self, wait: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.wait, self.clock = wait, clock
        self.open: list[tuple[str, record_function | None]] = []
        self.reset()

    def reset(self) -> None:
        """Count from now on."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.wait()
        self.since = self.clock()

    @property
    def current(self) -> str:
        """The innermost phase."""
        return self.open[-1][0] if self.open else REST

    def charge(self) -> None:
        """Add the time since the last change to the current phase."""
        self.wait()
        now = self.clock()
        self.seconds[self.current] += now - self.since
        self.since = now

    def start(self, action_name: str) -> None:
        """Enter a call."""
        phase = phase_of(action_name) or self.current
        named = None
        if phase != self.current:
            self.charge()
            named = record_function(phase)
            named.__enter__()
        self.open.append((phase, named))

    def stop(self, action_name: str) -> None:
        """Leave the innermost call."""
        _, named = self.open[-1]
        if named is not None:
            self.charge()
            named.__exit__(None, None, None)
        self.open.pop()


class Profiling(Callback):
    """Profiles a few steps of one process, writes what it found to `folder`, and ends the loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps = 0
        self.phases = Phases(lambda: None)
        self.table = ""

    def attach(self, trainer: lightning.Trainer) -> None:
        """Follow a trainer, without what saves, probes, draws a bar, and handles signals to save."""
        without = (Checkpointing, Probing, Progress, Stopping)
        kept = [callback for callback in trainer.callbacks if not isinstance(callback, without)]  # type: ignore[attr-defined]
        trainer.callbacks = [*kept, self]  # type: ignore[attr-defined]
        trainer.profiler = self.phases  # type: ignore[attr-defined]

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Choose what is recorded by the device."""
        self.on_gpu = module.device.type == "cuda"
        self.phases.wait = torch.cuda.synchronize if self.on_gpu else (lambda: None)
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.on_gpu else [])]
        self.profiler = profile(activities=kinds, schedule=schedule(wait=0, warmup=WARMING, active=PROFILED))

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Begin after the first steps, and end after the last."""
        if not module.finished:
            return
        self.steps += 1
        if self.steps == STEPS:
            self.phases.charge()
            self.profiler.stop()
            if trainer.is_global_zero:
                self.write()
            trainer.should_stop = True
        elif self.steps == SKIPPED:
            self.profiler.start()
        elif self.steps > SKIPPED:
            self.profiler.step()
            if self.steps == SKIPPED + WARMING:
                self.phases.reset()

    def write(self) -> None:
        """Write the trace and the table."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.profiler.export_chrome_trace(str(self.folder / "trace.json"))
        self.table = phase_table(self.phases.seconds, PROFILED)
        kind = "device" if self.on_gpu else "cpu"
        operations = self.profiler.key_averages().table(
            sort_by=f"self_{kind}_time_total", row_limit=OPERATIONS, max_name_column_width=NAME_WIDTH
        )
        write_atomic(self.folder / "profile.txt", f"{self.table}\n\n{operations}\n".encode())


def phase_table(seconds: Mapping[str, float], steps: int) -> str:
    r"""Format the phases of so many steps.

    Example:
        >>> print(phase_table({"data": 0.5, "forward": 1.5}, 2))
        phase                     ms a step   share
        data                          250.0   25.0%
        forward                       750.0   75.0%
        all                         1,000.0  100.0%
    """
    whole = sum(seconds.values())
    rows = [*seconds.items(), ("all", whole)]
    lines = [f"{name:<25}{1e3 * took / steps:>10,.1f}{took / max(whole, 1e-12):>8.1%}" for name, took in rows]
    return "\n".join([f"{'phase':<25}{'ms a step':>10}{'share':>8}", *lines])
