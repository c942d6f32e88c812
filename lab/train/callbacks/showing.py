"""What is shown of a run while it trains: the progress bar, and Weights & Biases, which may fail at any time.

Without a key, or without an answer of the server within CONNECT_S, the run is recorded offline, for `wandb sync`. Later
on wandb's own process sends what it has stored on disk, so that an outage costs nothing; the end waits FINISH_S for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning
from lab.train.callbacks.probing import Probing
from lab.train.callbacks.recording import Recording
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import WandbLogger

from lab.command import Bar, show
from lab.config import Experiment
from lab.errors import first_line

CONNECT_S, FINISH_S = 7.0, 10.0
EXIT_CODES = {"finished": 0, "unfinished": 1}


class Progress(Callback):
    """Shows the latest values of the other callbacks; writes to stderr on the first rank only."""

    def __init__(self, experiment: Experiment, recording: Recording, probing: Probing) -> None:
        self.train, self.recording, self.probing = experiment.train, recording, probing
        self.bar: Bar | None = None

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Open the bar at the current number of tokens, and let the probe name what it measures."""
        if trainer.is_global_zero:
            total = self.train.steps * self.train.batch_tokens
            self.bar = Bar(total=total, initial=module.consumed, unit="tok", unit_scale=True, desc="train")
            self.probing.report = self.bar.set_postfix_str

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Advance by the step's tokens."""
        if self.bar is None or not module.finished:
            return
        latest, length = self.recording.latest, self.probing.latest
        if latest:
            loss = "-" if latest["loss"] is None else format(latest["loss"], ".3f")
            text = f"loss {loss}, {latest['tokens_per_s']:,.0f} tok/s"
            self.bar.set_postfix_str(text + ("" if length is None else f", effective length {length}"), refresh=False)
        self.bar.update(module.consumed - self.bar.n)

    def teardown(self, trainer: lightning.Trainer, module: Any, stage: str) -> None:
        """Close the bar, also after an error, and keep its last line."""
        if self.bar is not None:
            self.bar.close()

    def on_exception(self, trainer: lightning.Trainer, module: Any, exception: BaseException) -> None:
        """Close the bar; Lightning calls no teardown then."""
        self.teardown(trainer, module, "fit")


class Dashboard(WandbLogger):
    """Lightning's logger for Weights & Biases, whose failures are a line on stderr each."""

    def __init__(self, *, mode: str, **options: Any) -> None:
        import wandb

        wandb.setup(wandb.Settings(login_timeout=CONNECT_S))  # for a key to be entered, at a terminal
        # not quiet, it also asks the server for the user's name
        settings = wandb.Settings(quiet=True, init_timeout=CONNECT_S, finish_timeout=FINISH_S)
        super().__init__(mode=mode, settings=settings, **options)
        self.broken = False

    @property
    def experiment(self) -> Any:
        """The run at Weights & Biases, started where it is not: as asked for, or else offline."""
        if self._experiment is None:
            asked = self._wandb_init["mode"]
            try:
                if super().experiment.disabled and os.environ.get("WANDB_MODE") != "disabled":
                    raise TimeoutError("no key was entered")
            except Exception as error:  # of any kind: the run must not depend on it
                self._experiment, self._wandb_init["mode"] = None, "offline"
                place = Path(super().experiment.dir).parent
                line = f"track.wandb={asked}: {first_line(error)}; recorded offline, send it with: wandb sync {place}"
                show(line, error=True)
        return self._experiment

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Send numbers, unless sending has failed before."""
        if not self.broken:
            with self.tolerated():
                super().log_metrics(metrics, step)

    def finalize(self, status: str) -> None:
        """Wait for what is still to be sent, once the run is "finished" or "unfinished"; Lightning ends with others."""
        if self._experiment is None or status not in EXIT_CODES:
            return
        import wandb

        place, begin = Path(self._experiment.dir).parent, time.monotonic()
        with self.tolerated():
            wandb.teardown(EXIT_CODES[status])
        if time.monotonic() - begin >= FINISH_S:
            rest = f"wandb sync --include-online {place}"
            show(f"track.wandb: not all was sent in {FINISH_S:g} s; send it with: {rest}", error=True)

    @contextmanager
    def tolerated(self) -> Iterator[None]:
        """Report the first failure inside; wandb raises SystemExit where its own process has failed."""
        try:
            yield
        except (Exception, SystemExit) as error:
            reason = f"its process ended with status {error.code}" if isinstance(error, SystemExit) else ""
            if not self.broken:
                line = f"track.wandb: {reason or first_line(error)}; no longer mirrored, the run folder holds all"
                show(line, error=True)
            self.broken = True
