"""A copy of a run's records for people who look at Weights & Biases.

It may fail or hang at any time, already when it is imported: that costs one line, and LIMIT_S at most. Without a key,
or an answer of the server within CONNECT_S, the run is recorded offline, for `wandb sync`. Later wandb's own process
sends what it has stored on disk, so that an outage costs nothing; the end waits FINISH_S for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lab.command import show
from lab.config import Experiment, TrackConfig
from lab.errors import MissingPackage, first_line

CONNECT_S = 7.0
FINISH_S = 10.0
LIMIT_S = 120.0  # of one call; importing wandb takes long on a busy machine


def check_packages(track: TrackConfig) -> None:
    """Refuse a dashboard whose package is not installed.

    Raises: MissingPackage.
    """
    if track.wandb != "off" and find_spec("wandb") is None:
        raise MissingPackage("wandb", f"track.wandb={track.wandb}", "wandb")


class Wandb:
    """The run at Weights & Biases, as asked for or else offline; its failures are a line, and the run goes on."""

    def __init__(self, experiment: Experiment) -> None:
        self.run: Any = None
        self.broken = False
        self.attempt(lambda: self.open(experiment))

    def open(self, experiment: Experiment) -> None:
        """Begin the run as asked, or offline."""
        import wandb

        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # the end would wait for a server that stalls
        wandb.setup(wandb.Settings(login_timeout=CONNECT_S))  # for a key to be entered, at a terminal
        # not quiet, it also asks the server for the user's name
        settings = wandb.Settings(quiet=True, init_timeout=CONNECT_S, finish_timeout=FINISH_S)
        begin: Any = partial(wandb.init, project="probe-lab", config=experiment.to_dict(), settings=settings)
        begin = partial(begin, name=experiment.run.name, dir=str(experiment.run.path))
        asked = experiment.track.wandb
        try:
            self.run = begin(mode=asked)
            if self.run.disabled and os.environ.get("WANDB_MODE") != "disabled":
                raise TimeoutError("no key was entered")
        except Exception as error:  # of any kind: the run must not depend on it
            self.run = begin(mode="offline")
            remedy = f"recorded offline, send it with: wandb sync {Path(self.run.dir).parent}"
            show(f"track.wandb={asked}: {first_line(error)}; {remedy}", error=True)
        self.run.define_metric("*", step_metric="consumed_tokens")

    def mirror(self, record: Mapping[str, Any]) -> None:
        """Send a record's numbers, unless sending has failed before."""
        numbers = {key: value for key, value in record.items() if isinstance(value, int | float)}
        if not self.broken:
            self.attempt(lambda: self.run.log(numbers))

    def attempt(self, call: Callable[[], Any]) -> None:
        """Call wandb, and report the first time that it fails or does not return.

        It raises SystemExit where its own process has failed. A thread that hangs is left behind.
        """
        faults: list[BaseException] = []

        def caught() -> None:
            try:
                call()
            except BaseException as error:
                faults.append(error)

        thread = threading.Thread(target=caught, daemon=True)
        thread.start()
        thread.join(LIMIT_S)
        if thread.is_alive():
            faults.append(TimeoutError(f"does not return in {LIMIT_S:g} s"))
        if faults and not self.broken:
            reason = f"{type(faults[0]).__name__}: {first_line(faults[0])}"
            show(f"track.wandb: {reason}; no longer mirrored, the run folder holds all", error=True)
        self.broken = self.broken or bool(faults)

    def close(self, *, finished: bool) -> None:
        """Wait for what is still to be sent."""
        if self.run is None:
            return
        import wandb

        begin = time.monotonic()
        self.attempt(lambda: wandb.teardown(int(not finished)))
        if not self.broken and time.monotonic() - begin >= FINISH_S:
            rest = f"wandb sync --include-online {Path(self.run.dir).parent}"
            show(f"track.wandb: not all was sent in {FINISH_S:g} s; send it with: {rest}", error=True)
