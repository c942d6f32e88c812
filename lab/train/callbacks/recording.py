"""Writes metrics.jsonl, one line every few optimizer steps, and mirrors it to the dashboard."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback

from lab.config import Experiment
from lab.counts import PositionCounts
from lab.model.config import peak_flops, utilisation
from lab.train.callbacks.counting import Counting
from lab.train.folder import RunFolder
from lab.train.module import SUMS


class Recording(Callback):
    """Means since the last line; f at a few positions, each by its column's name, and the shares of the position mass.

    Units: loss in nats per scored token, without the steps that `skipped_steps` counts, which had no update;
    tokens_per_s over all ranks, time spent in probes, saving and this callback left out; `mfu` counts full windows,
    `mfu_pairs` the pairs that were attended.
    """

    def __init__(self, experiment: Experiment, folder: RunFolder, counting: Counting) -> None:
        self.experiment, self.folder, self.counting = experiment, folder, counting
        self.sums = dict.fromkeys(SUMS, 0.0)  # of the steps since the last line that had an update
        self.busy_s = 0.0
        self.batch_start = 0.0
        self.latest: dict[str, Any] = {}

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Start the clock and look up the device's peak."""
        self.peak = peak_flops(torch.cuda.get_device_name() if module.device.type == "cuda" else None)
        self.batch_start = time.perf_counter()
        self.timed_tokens = module.consumed

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the step's sums, and write a line when it is due."""
        if not module.finished:
            return
        self.busy_s += time.perf_counter() - self.batch_start
        if not module.finished.skipped:
            self.sums = {name: total + module.finished.sums[name] for name, total in self.sums.items()}
        if trainer.global_step % self.experiment.track.every_steps == 0 or trainer.global_step == trainer.max_steps:
            self.write_line(trainer, module)
        self.batch_start = time.perf_counter()

    def write_line(self, trainer: lightning.Trainer, module: Any) -> None:
        """Write one line, with null for a value that is not finite; a collective call."""
        counts = self.counting.total()
        tokens_per_s = (module.consumed - self.timed_tokens) / max(self.busy_s, 1e-9)
        record = {
            "step": trainer.global_step,
            "consumed_tokens": module.consumed,
            "loss": self.sums["loss"] / self.sums["targets"] if self.sums["targets"] else None,
            "lr": module.finished.lr,
            "grad_norm": module.finished.grad_norm if math.isfinite(module.finished.grad_norm) else None,
            "skipped_steps": module.skipped_steps,
            "tokens_per_s": round(tokens_per_s, 1),
            **self.utilisations(counts, tokens_per_s, trainer.world_size),
            **frequency_metrics(counts, self.experiment.logged_positions),
            **self.counting.selected(),
        }
        self.sums, self.busy_s = dict.fromkeys(SUMS, 0.0), 0.0
        self.timed_tokens = module.consumed
        self.latest = record
        if trainer.is_global_zero:
            self.folder.append("metrics.jsonl", record)
            mirror(trainer, record, module.consumed)

    def utilisations(self, counts: PositionCounts, tokens_per_s: float, n_devices: int) -> dict[str, float | None]:
        """Compute both utilisations, null where the device's peak is unknown."""
        model = self.experiment.model
        causal = model.flops_per_token_causal(self.experiment.data.window)
        actual = model.flops_per_token(counts.pairs / max(counts.tokens, 1))
        return {
            "mfu": utilisation(causal, tokens_per_s, self.peak, n_devices),
            "mfu_pairs": utilisation(actual, tokens_per_s, self.peak, n_devices),
            "flops_per_token": actual,
        }

    def pause(self) -> None:
        """Leave out the time since the last step ended; called after probing or saving."""
        self.batch_start = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        """Save the sums since the last line."""
        return {"sums": self.sums}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the sums since the last line."""
        self.sums = state_dict["sums"]


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
