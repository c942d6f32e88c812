"""Mirrors a run to Weights & Biases, which may fail at any time without a loss to the run.

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

from lightning.pytorch.loggers import WandbLogger

from lab.command import show
from lab.errors import first_line

CONNECT_S, FINISH_S = 7.0, 10.0
EXIT_CODES = {"finished": 0, "unfinished": 1}


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
