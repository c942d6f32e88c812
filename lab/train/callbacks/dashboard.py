"""Mirrors a run to Weights & Biases, which may fail at any time without a loss to the run.

Without a key, or without an answer of the server within CONNECT_S, the run is recorded offline, for `wandb sync`. Later
on wandb's own process sends what it has stored on disk, so that an outage costs nothing; the end waits FINISH_S for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger

from lab.command import show

CONNECT_S, FINISH_S = 7.0, 10.0
MODES = ("online", "offline", "disabled")
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
        """The run at Weights & Biases, started where it is not: online, or else offline, or else not at all."""
        if self._experiment is not None:
            return self._experiment
        first = self._wandb_init["mode"]
        for mode in MODES[MODES.index(first) : -1]:
            self._wandb_init["mode"] = mode
            try:
                run = super().experiment
                if getattr(run, "disabled", False) and os.environ.get("WANDB_MODE") != "disabled":
                    raise TimeoutError("no key was entered")
            except Exception as error:  # of any kind: the run must not depend on it
                self._experiment, reason = None, first_line(error)
                continue
            if mode != first:
                place = Path(run.dir).parent
                show(f"track.wandb={first}: {reason}; recorded offline, send it with: wandb sync {place}", error=True)
            return run
        show(f"track.wandb={first}: {reason}; the run is not mirrored, its folder holds all", error=True)
        self._wandb_init["mode"] = MODES[-1]
        return super().experiment

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Send numbers, unless sending has failed before."""
        if self.broken:
            return
        try:
            super().log_metrics(metrics, step)
        except Exception as error:  # as above; wandb's own process may have been killed
            self.fail(error)

    def finalize(self, status: str) -> None:
        """Wait for what is still to be sent, once the run is "finished" or "unfinished"; Lightning ends with others."""
        if self._experiment is None or status not in EXIT_CODES:
            return
        import wandb

        place, begin = Path(self._experiment.dir).parent, time.monotonic()
        try:
            wandb.teardown(EXIT_CODES[status])
        except SystemExit as error:  # by which wandb passes on that its own process failed
            self.fail(RuntimeError(f"its process ended with status {error.code}"))
        except Exception as error:  # as above
            self.fail(error)
        if time.monotonic() - begin >= FINISH_S:
            rest = f"wandb sync --include-online {place}"
            show(f"track.wandb: not all was sent in {FINISH_S:g} s; send it with: {rest}", error=True)

    def fail(self, error: Exception) -> None:
        """Report the first failure, and try no more."""
        if not self.broken:
            show(f"track.wandb: {first_line(error)}; no longer mirrored, the run folder holds all", error=True)
        self.broken = True


def first_line(error: Exception) -> str:
    """Return what an error is about."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
