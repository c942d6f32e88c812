"""Copies of a run's records for people who look at Weights & Biases, TensorBoard or a CSV file.

Each may fail or hang at any time, already when it is imported: that costs one line, and LIMIT_S at most.

Weights & Biases: without a key, or an answer of the server within CONNECT_S, the run is recorded offline, for `wandb
sync`. Later wandb's own process sends what it has stored on disk, so that an outage costs nothing; the end waits
FINISH_S for it.

TensorBoard's events and metrics.csv are Lightning's loggers, in tensorboard/ and csv/ of the run folder. Their `step`
is consumed tokens, as a probe may fall between two lines of metrics.jsonl. A resumed run writes them anew from the
records that it keeps, so that they continue without gaps or repeats.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Any

from lab.command import show
from lab.config import Experiment
from lab.config.sections import TrackConfig
from lab.errors import MissingPackage, first_line
from lab.files import remove
from lab.train.folder import RunFolder

CONNECT_S = 7.0
FINISH_S = 10.0
LIMIT_S = 120.0  # of one call; importing wandb takes long on a busy machine


def check_packages(track: TrackConfig) -> None:
    """Refuse dashboards whose package is not installed.

    Raises: MissingPackage.
    """
    if track.wandb != "off" and find_spec("wandb") is None:
        raise MissingPackage("wandb", f"track.wandb={track.wandb}", "wandb")
    if "tensorboard" in track.loggers and find_spec("tensorboard") is None:
        raise MissingPackage("tensorboard", "track.loggers=[tensorboard]", "tensorboard")


def dashboards_of(experiment: Experiment) -> list[Logger | Wandb]:
    """Open the dashboards that a run asks for, in the first process."""
    loggers: list[Logger | Wandb] = [Logger(experiment, kind) for kind in experiment.track.loggers]
    return loggers if experiment.track.wandb == "off" else [*loggers, Wandb(experiment)]


class Dashboard:
    """A copy of a run's records; its failures are a line on stderr, and the run goes on."""

    name: str
    log: Callable[[dict[str, float]], Any]
    broken = False

    def mirror(self, record: Mapping[str, Any]) -> None:
        """Send a record's numbers, unless sending has failed before."""
        numbers = {key: value for key, value in record.items() if isinstance(value, int | float)}
        if not self.broken:
            self.attempt(lambda: self.log(numbers))

    def attempt(self, call: Callable[[], Any]) -> None:
        """Call foreign code, and report the first time that it fails or does not return.

        wandb raises SystemExit where its own process has failed. A thread that hangs is left behind.
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
            show(f"{self.name}: {reason}; no longer mirrored, the run folder holds all", error=True)
        self.broken = self.broken or bool(faults)


class Logger(Dashboard):
    """One of Lightning's loggers, in a folder of its own."""

    def __init__(self, experiment: Experiment, kind: str) -> None:
        self.name = f"track.loggers={kind}"
        self.folder = RunFolder(experiment.run.path)
        self.logger: Any = None
        self.attempt(lambda: self.open(kind))
        before = [*self.folder.records("metrics.jsonl"), *self.folder.probes()]
        for record in sorted(before, key=itemgetter("consumed_tokens")):
            self.mirror(record)

    def open(self, kind: str) -> None:
        """Begin an empty folder."""
        from lightning.fabric.loggers.csv_logs import CSVLogger
        from lightning.fabric.loggers.tensorboard import TensorBoardLogger

        remove(self.folder.path / kind)
        makes: dict[str, Any] = {"csv": CSVLogger, "tensorboard": TensorBoardLogger}
        self.logger = makes[kind](self.folder.path, name="", version=kind)

    def log(self, numbers: dict[str, float]) -> None:
        """Write numbers; the optimizer's step has another name here."""
        numbers = {"optimizer_step" if key == "step" else key: value for key, value in numbers.items()}
        self.logger.log_metrics(numbers, step=numbers["consumed_tokens"])
        self.logger.save()

    def close(self, *, finished: bool) -> None:
        """Write what is left."""
        if self.logger is not None:
            self.attempt(lambda: self.logger.finalize("success" if finished else "failed"))


class Wandb(Dashboard):
    """The run at Weights & Biases, as asked for or else offline."""

    name = "track.wandb"

    def __init__(self, experiment: Experiment) -> None:
        self.run: Any = None
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
        self.log = self.run.log

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
