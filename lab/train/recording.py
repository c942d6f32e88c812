"""What is recorded of a run while it trains: position counts, metrics.jsonl, the progress bar, and the dashboard.

The dashboard, Weights & Biases, may fail at any time. Without a key, or an answer of the server within CONNECT_S, the
run is recorded offline, for `wandb sync`. Later wandb's own process sends what it has stored on disk, so that an outage
costs nothing; the end waits FINISH_S for it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import WandbLogger
from torch import distributed

from lab.command import Bar, show
from lab.config import Experiment
from lab.counts import COUNTED, PositionCounts
from lab.errors import MissingPackage, first_line
from lab.model.config import peak_flops, utilisation
from lab.positions import Distance
from lab.train.folder import RunFolder
from lab.train.module import SUMS

SELECTED = ("samples", "samples_unmatched", "samples_short")
"""Samples made of selected sentences; those without an impactful token; those shorter than data.window."""
CONNECT_S, FINISH_S = 7.0, 10.0


class Counting:
    """Counts what attention saw: the segments of every pack that was trained on, over all ranks.

    It never waits for the device: lengths and targets are counted on the host. Ranks are added up only when `total` is
    called, which every rank must do together; each pack has been counted by `copies` of them.
    """

    def __init__(self, max_len: int, distance: Distance, *, selects: bool = False, copies: int = 1) -> None:
        self.rel_pos = None if distance.is_plain else partial(relative_positions, distance)
        self.before = PositionCounts(max_len, self.rel_pos)  # of all ranks, from the checkpoint
        self.here = PositionCounts(max_len, self.rel_pos)  # of this rank, since
        self.selects, self.copies = selects, copies
        self.selected_before = np.zeros(len(SELECTED), dtype=np.int64)
        self.selected_here = np.zeros(len(SELECTED), dtype=np.int64)

    def add(self, batch: Mapping[str, Any]) -> None:
        """Count a pack."""
        self.here.add_runs(batch["lengths"], batch["counted"], batch["anchors"])
        self.here.add_targets(batch["supervised"])
        if self.selects:
            self.selected_here += batch["selected"]

    def total(self) -> PositionCounts:
        """Add up all ranks; a collective call."""
        parts = [getattr(self.here, name) for name in COUNTED]
        everywhere = PositionCounts(self.here.max_len, self.rel_pos, self.here.weights)
        total = summed_over_ranks(np.concatenate(parts)) // self.copies
        summed = np.split(total, np.cumsum([len(part) for part in parts])[:-1])
        for name, part in zip(COUNTED, summed, strict=True):
            setattr(everywhere, name, part)
        return self.before + everywhere

    def selected(self) -> dict[str, int]:
        """Count the samples of selected sentences trained on so far, if sentences are selected; a collective call."""
        if not self.selects:
            return {}
        total = self.selected_before + summed_over_ranks(self.selected_here) // self.copies
        return dict(zip(SELECTED, total.tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Save the count of all ranks."""
        return self.total().to_dict() | self.selected()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the count of all ranks."""
        self.before = PositionCounts.from_dict(state_dict)
        self.before.rel_pos, self.before.weights = self.rel_pos, self.here.weights
        self.selected_before = np.array([state_dict.get(name, 0) for name in SELECTED], dtype=np.int64)


def summed_over_ranks(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Add up every rank's values; a collective call."""
    total = torch.from_numpy(values.copy())
    if distributed.is_available() and distributed.is_initialized():
        total = total.to("cuda" if distributed.get_backend() == "nccl" else "cpu")
        distributed.all_reduce(total)
    return total.cpu().numpy()


def relative_positions(distance: Distance, q_pos: npt.NDArray[Any], k_pos: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Compute relative positions by a distance method on numpy arrays."""
    return distance.rel_pos(torch.from_numpy(q_pos), torch.from_numpy(k_pos)).numpy()


class Recording(Callback):
    """Counts every pack, writes a line every few steps, and shows the latest on the first rank's stderr.

    A line has means since the last one, f at a few positions by the column's name, and shares of the position mass.
    Units: loss in nats per scored token, without the steps that `skipped_steps` counts, which had no update;
    tokens_per_s over all ranks, time spent in probes, saving and this callback left out; `mfu` counts full windows,
    `mfu_pairs` the pairs that were attended.
    """

    def __init__(self, experiment: Experiment, folder: RunFolder) -> None:
        self.experiment, self.folder = experiment, folder
        self.counting = Counting(
            experiment.reach,
            experiment.position.distance,
            selects=experiment.skip is not None and experiment.skip.selects,
            copies=experiment.train.context_parallel,
        )
        self.sums = dict.fromkeys(SUMS, 0.0)  # of the steps since the last line that had an update
        self.busy_s = 0.0
        self.batch_start = 0.0
        self.shown = ""  # of the last line
        self.length: str | None = None  # effective length by the last probe
        self.bar: Bar | None = None

    def setup(self, trainer: lightning.Trainer, module: Any, stage: str) -> None:
        """Take the loss weights that the data module has planned."""
        self.counting.before.weights = self.counting.here.weights = trainer.datamodule.weights  # type: ignore[attr-defined]

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Start the clock, look up the device's peak, and open the bar."""
        self.peak = peak_flops(torch.cuda.get_device_name() if module.device.type == "cuda" else None)
        self.batch_start = time.perf_counter()
        self.timed_tokens = module.consumed
        if trainer.is_global_zero:
            total = self.experiment.train.steps * self.experiment.train.batch_tokens
            self.bar = Bar(total=total, initial=module.consumed, unit="tok", unit_scale=True, desc="train")

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the pack; after a step add its sums, and write a line when it is due."""
        self.counting.add(batch)
        trainer.datamodule.consumed(batch)  # type: ignore[attr-defined]
        if not module.finished:
            return
        self.busy_s += time.perf_counter() - self.batch_start
        if not module.finished.skipped:
            self.sums = {name: total + module.finished.sums[name] for name, total in self.sums.items()}
        if trainer.global_step % self.experiment.track.every_steps == 0 or trainer.global_step == trainer.max_steps:
            self.write_line(trainer, module)
        if self.bar is not None:
            length = "" if self.length is None or not self.shown else f", effective length {self.length}"
            self.bar.set_postfix_str(self.shown + length, refresh=False)
            self.bar.update(module.consumed - self.bar.n)
        self.pause()

    def write_line(self, trainer: lightning.Trainer, module: Any) -> None:
        """Write one line, with null for a value that is not finite; a collective call."""
        counts, model, stats = self.counting.total(), self.experiment.model, module.finished
        tokens_per_s = (module.consumed - self.timed_tokens) / max(self.busy_s, 1e-9)
        loss = self.sums["loss"] / self.sums["targets"] if self.sums["targets"] else None
        actual = model.flops_per_token(counts.pairs / max(counts.tokens, 1))
        causal = model.flops_per_token_causal(self.experiment.data.window)
        record = {
            "step": trainer.global_step,
            "consumed_tokens": module.consumed,
            "loss": loss,
            "lr": stats.lr,
            "grad_norm": stats.grad_norm if math.isfinite(stats.grad_norm) else None,
            "skipped_steps": module.skipped_steps,
            "tokens_per_s": round(tokens_per_s, 1),
            "mfu": utilisation(causal, tokens_per_s, self.peak, trainer.world_size),
            "mfu_pairs": utilisation(actual, tokens_per_s, self.peak, trainer.world_size),
            "flops_per_token": actual,
            **frequency_metrics(counts, self.experiment.logged_positions),
            **self.counting.selected(),
        }
        self.sums = dict.fromkeys(SUMS, 0.0)
        self.busy_s = 0.0
        self.timed_tokens = module.consumed
        self.shown = f"loss {'-' if loss is None else format(loss, '.3f')}, {tokens_per_s:,.0f} tok/s"
        if trainer.is_global_zero:
            self.folder.append("metrics.jsonl", record)
            mirror(trainer, record, module.consumed)

    def report(self, line: str) -> None:
        """Show what a probe measures."""
        if self.bar is not None:
            self.bar.set_postfix_str(line)

    def pause(self) -> None:
        """Leave out the time since the last step ended; called after probing or saving."""
        self.batch_start = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        """Save the counts, and the sums since the last line."""
        return {"counts": self.counting.state_dict(), "sums": self.sums}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the counts, and the sums since the last line."""
        self.counting.load_state_dict(state_dict["counts"])
        self.sums = state_dict["sums"]

    def teardown(self, trainer: lightning.Trainer, module: Any, stage: Any) -> None:
        """Close the bar and keep its last line."""
        if self.bar is not None:
            self.bar.close()

    on_exception = teardown  # type: ignore[assignment]  # Lightning calls no teardown then


def frequency_metrics(counts: PositionCounts, positions: Mapping[str, int]) -> dict[str, float]:
    """Read f and the supervised f at the chosen positions, by name, and f's shares at i <= L/2 and i >= 3L/4 of L."""
    frequency, supervised, window = counts.frequency(), counts.supervised_f(), counts.max_len
    metrics: dict[str, float] = {name: int(frequency[position]) for name, position in positions.items()}
    metrics |= {f"supervised_{name}": supervised[position].item() for name, position in positions.items()}
    metrics["share_le_half"] = counts.share(0, window // 2)
    metrics["share_ge_three_quarters"] = counts.share(-(-3 * window // 4), window)
    return metrics


def mirror(trainer: lightning.Trainer, record: dict[str, Any], step: int) -> None:
    """Send a record's numbers to the dashboards, by consumed tokens."""
    numbers = {key: value for key, value in record.items() if isinstance(value, int | float)}
    for logger in trainer.loggers:
        logger.log_metrics(numbers, step=step)


def make_logger(experiment: Experiment) -> Any:
    """Build the dashboard's logger; False for none.

    Raises: MissingPackage.
    """
    mode, run = experiment.track.wandb, experiment.run
    if mode == "off":
        return False
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # the end would wait for a server that stalls
    try:
        return Dashboard(
            mode=mode, project="probe-lab", name=run.name, save_dir=str(run.path), config=experiment.to_dict()
        )
    except ModuleNotFoundError as error:
        raise MissingPackage("wandb", f"track.wandb={mode}", "wandb") from error


class Dashboard(WandbLogger):
    """Lightning's logger for Weights & Biases, whose failures are a line on stderr each."""

    def __init__(self, *, mode: str, **options: Any) -> None:
        import wandb  # or the logger would only fail in the middle of the run

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
        if self._experiment is None or status not in ("finished", "unfinished"):
            return
        import wandb

        place, begin = Path(self._experiment.dir).parent, time.monotonic()
        with self.tolerated():
            wandb.teardown(int(status == "unfinished"))
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
