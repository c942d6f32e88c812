"""What is recorded of a run while it trains: position counts, metrics.jsonl, the progress bar, and the dashboard."""

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.config import Experiment
from lab.core.command import Bar, show
from lab.core.errors import first_line
from lab.core.launch import Launch, sum_over_ranks
from lab.counts import PositionCounts
from lab.counts.position_counts import COUNTED
from lab.counts.rows import sum_to_the_end
from lab.data.batch import Batch
from lab.data.module import PackedData
from lab.model.devices import peak_flops, utilisation
from lab.runs.folder import RunFolder
from lab.train.state import SUMS, StepStats, TrainState, describe_error

CONNECT_S = 7.0
FINISH_S = 10.0
LIMIT_S = 120.0  # of one call; importing wandb takes long on a busy machine
SELECTED = ("samples", "samples_unmatched", "samples_short")
"""Samples made of selected sentences; those without an impactful token; those shorter than data.window."""


class Counting:
    """Counts what attention saw: the segments of every pack that was trained on, over all ranks.

    It never waits for the device: lengths and targets are counted on the host. Ranks are added up only when `total` is
    called, which every rank must do together; each pack has been counted by `copies` of them.
    """

    def __init__(self, experiment: Experiment) -> None:
        distance, layers, skip = experiment.position.distance, experiment.model.layers, experiment.skip

        def rel_pos(q_pos: np.ndarray, k_pos: np.ndarray) -> np.ndarray:
            return distance.rel_pos(torch.from_numpy(q_pos), torch.from_numpy(k_pos)).numpy()

        self.local = PositionCounts(experiment.reach, None if distance.is_plain else rel_pos)
        if layers is not None:
            self.local.encoded = layers.encoded(experiment.reach)
        self.copies = experiment.train.context_parallel
        self.selects = skip is not None and skip.selects
        self.local_selected = np.zeros(len(SELECTED), dtype=np.int64)
        self.local_tokens = np.zeros(len(experiment.data.parts), dtype=np.int64)

    def add(self, batch: Batch) -> None:
        """Count a pack."""
        pack = batch.pack
        assert batch.evidence is not None, "a run has an evidence method"
        assert batch.demand is not None, "as evidence has"
        self.local.add_runs(pack.lengths, pack.position_ids, pack.anchors)
        self.local_tokens[pack.corpus] += sum(pack.lengths)
        self.local.add_targets(batch.supervised)
        self.local.add_evidence(batch.evidence, batch.demand, batch.demand_by_ids)
        if pack.selected is not None:
            self.local_selected += pack.selected

    def total(self) -> PositionCounts:
        """Add up all ranks; a collective call."""
        total = copy(self.local)
        for name in COUNTED:
            setattr(total, name, sum_over_ranks(getattr(total, name)) // self.copies)
        return total

    def selected(self) -> dict[str, int]:
        """Count the samples of selected sentences trained on so far, if sentences are selected; a collective call."""
        if not self.selects:
            return {}
        return dict(zip(SELECTED, (sum_over_ranks(self.local_selected) // self.copies).tolist(), strict=True))

    def corpus_tokens(self) -> dict[str, list[int]]:
        """Count the tokens trained on so far of each corpus of a mixture; a collective call."""
        if len(self.local_tokens) == 1:
            return {}
        return {"corpus_tokens": (sum_over_ranks(self.local_tokens) // self.copies).tolist()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the counts of a checkpoint; on the first rank alone, as `total` adds up all ranks."""
        for name in COUNTED:
            getattr(self.local, name)[:] = np.multiply(state_dict[name], self.copies)
        self.local_selected[:] = [self.copies * state_dict.get(name, 0) for name in SELECTED]
        self.local_tokens[:] = np.multiply(state_dict.get("corpus_tokens", 0), self.copies)


@dataclass(eq=False)
class Recording:
    """Counts every pack, writes a line every few steps, and shows the latest on the first rank's stderr.

    A line has means since the last one, f at a few positions by the column's name, and shares of the position mass.

    Units: loss in nats per scored token, without the steps that `skipped_steps` counts, which had no update;
    tokens_per_s over all ranks, without the time spent in probes, saving and here. `mfu` counts the causal
    pairs of full windows, `mfu_full` hidden pairs, too, as other trainers do.
    """

    experiment: Experiment
    data: PackedData
    launch: Launch
    busy_s: float = 0.0  # since the last line
    batch_start: float = 0.0
    shown: str = ""  # of the last line
    bar: Bar | None = None
    dashboard: "Wandb | None" = None

    def __post_init__(self) -> None:
        """Start at zero."""
        self.folder = RunFolder(self.experiment.run.path)
        self.counting = Counting(self.experiment)
        self.sums = dict.fromkeys(SUMS, 0.0)  # of the steps since the last line that had an update

    def open(self, state: TrainState) -> None:
        """Start the clock, look up the device's peak, and open bar and dashboard."""
        self.peak = peak_flops(torch.cuda.get_device_name() if state.device.type == "cuda" else None)
        self.timed_tokens = state.consumed
        if self.launch.is_first:
            train = self.experiment.train
            total = train.steps * train.batch_tokens
            self.bar = Bar(total=total, initial=state.consumed, unit="tok", unit_scale=True, desc="train")
            if self.experiment.track.wandb != "off":
                self.dashboard = Wandb(self.experiment)
        self.pause()

    def count(self, batch: Batch) -> None:
        """Count a pack, and note where its stream resumes."""
        self.counting.add(batch)
        self.data.consumed(batch)

    def record(self, state: TrainState, stats: StepStats) -> None:
        """Add the sums of a step, and write a line when it is due."""
        # The host has just waited for the device. What is still queued is the update, for which the next step waits.
        self.busy_s += time.perf_counter() - self.batch_start
        if not stats.skipped:
            for name in SUMS:
                self.sums[name] += stats.sums[name]
        if state.step % self.experiment.track.every_steps == 0 or state.is_finished:
            self.write_line(state, stats)
        if self.bar is not None:
            self.bar.set_postfix_str(self.shown, refresh=False)
            self.bar.update(state.consumed - self.bar.n)

    def write_line(self, state: TrainState, stats: StepStats) -> None:
        """Write one line, with null for a value that is not finite; a collective call."""
        tokens_per_s = (state.consumed - self.timed_tokens) / max(self.busy_s, 1e-9)
        # Without a target since the last line there is no mean: all steps were skipped, or all losses masked.
        loss = self.sums["loss"] / self.sums["targets"] if self.sums["targets"] else None
        model, window = self.experiment.model, self.experiment.data.window
        mfu = partial(utilisation, tokens_per_s=tokens_per_s, peak=self.peak, n_devices=self.launch.world_size)
        record = {
            "step": state.step,
            "consumed_tokens": state.consumed,
            "epoch": round(self.data.epoch(), 6),
            "loss": loss,
            "lr": stats.lr,
            "grad_norm": stats.grad_norm if math.isfinite(stats.grad_norm) else None,
            "skipped_steps": state.skipped_steps,
            "tokens_per_s": round(tokens_per_s, 1),
            "mfu": mfu(model.flops_per_token_causal(window)),
            "mfu_full": mfu(model.flops_per_token_full(window)),
            **frequency_metrics(self.counting.total()),
            **self.counting.selected(),
            **self.counting.corpus_tokens(),
        }
        # The line of the last step may come early: a longer run goes on with the sums of its interval.
        if state.step % self.experiment.track.every_steps == 0:
            self.sums = dict.fromkeys(SUMS, 0.0)
        self.busy_s = 0.0
        self.timed_tokens = state.consumed
        self.shown = f"loss {'-' if loss is None else format(loss, '.3f')}, {tokens_per_s:,.0f} tok/s"
        if self.launch.is_first:
            self.folder.append("metrics.jsonl", record)
            self.mirror(record)

    def mirror(self, record: Mapping[str, object]) -> None:
        if self.dashboard is not None:
            self.dashboard.mirror(record)

    def report(self, line: str) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(line)

    def pause(self) -> None:
        """Start the clock of the next step, which excludes recording, saving and probing."""
        self.batch_start = time.perf_counter()

    def close(self, *, finished: bool) -> None:
        if self.bar is not None:
            self.bar.close()
        if self.dashboard is not None:
            self.dashboard.close(finished=finished)


class Wandb:
    """A copy of a run's records at Weights & Biases, which may fail or hang at any time, already when it is imported.

    That costs one line, and LIMIT_S at most. Without a key, or an answer of the server within CONNECT_S, the run is
    recorded offline, for `wandb sync`. Later wandb's own process sends what it has stored on disk, so that an outage
    costs nothing; the end waits FINISH_S for it.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.run: Any = None
        self.broken = False
        self.attempt(lambda: self.open(experiment))

    def open(self, experiment: Experiment) -> None:
        """Begin the run in the mode of the config, or offline."""
        import wandb

        mode: Any = experiment.track.wandb
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # the end would wait for a server that stalls
        # Under wandb's agents the run would share their process, which no teardown here ends, and with it the id.
        os.environ.pop("WANDB_SERVICE", None)
        wandb.setup(wandb.Settings(login_timeout=CONNECT_S))  # for a key to be entered, at a terminal
        # wandb keeps the id below `dir` until a run ends well, so that a resumed run goes on as the same one there
        begin = partial(
            wandb.init,
            project="probe-lab",
            name=experiment.run.name,
            dir=str(experiment.run.path),
            resume="auto",
            config=experiment.to_dict(),
            # not quiet, it also asks the server for the user's name
            settings=wandb.Settings(quiet=True, init_timeout=CONNECT_S, finish_timeout=FINISH_S),
        )
        try:
            self.run = begin(mode=mode)
            # wandb gives a run that records nothing to somebody who entered no key
            if self.run.disabled and os.environ.get("WANDB_MODE") != "disabled":
                raise TimeoutError("no key was entered")
        except Exception as error:  # any: the run must not depend on it
            wandb.teardown(1)  # or the id would still be in use
            self.run = begin(mode="offline")
            offline = Path(self.run.dir).parent
            show(
                f"track.wandb={mode}: {first_line(error)}; recorded offline, send it with: wandb sync {offline}",
                error=True,
            )
        self.run.define_metric("*", step_metric="consumed_tokens")

    def mirror(self, record: Mapping[str, object]) -> None:
        """Send a record's numbers, unless sending has failed before."""
        if not self.broken:
            numbers = {key: value for key, value in record.items() if isinstance(value, int | float)}
            self.attempt(lambda: self.run.log(numbers))

    def attempt(self, call: Callable[[], object]) -> None:
        """Call wandb, and report the first time that it fails or does not return.

        It raises SystemExit where its own process has failed. A thread that hangs is left behind.
        """
        errors: list[BaseException] = []

        def caught() -> None:
            try:
                call()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=caught, daemon=True)
        thread.start()
        thread.join(LIMIT_S)
        if thread.is_alive():
            errors.append(TimeoutError(f"does not return in {LIMIT_S:g} s"))
        if errors and not self.broken:
            show(f"track.wandb: {describe_error(errors[0])}; no longer mirrored, the run folder holds all", error=True)
            self.broken = True

    def close(self, *, finished: bool) -> None:
        """Wait for what is still to be sent."""
        if self.run is None:
            return
        import wandb

        begin = time.monotonic()
        self.attempt(lambda: wandb.teardown(int(not finished)))
        if not self.broken and time.monotonic() - begin >= FINISH_S:
            show(
                f"track.wandb: not all was sent in {FINISH_S:g} s; send it with: "
                f"wandb sync --include-online {Path(self.run.dir).parent}",
                error=True,
            )


def frequency_metrics(counts: PositionCounts) -> dict[str, float]:
    """Read f, the supervised f and g at parts of the counted length L, and f's shares at i <= L/2 and i >= 3L/4.

    f_at_0.5L is f(L // 2), and g_from_0.5L the demand at distances of L // 2 and more, the sum of g there.
    """
    window = counts.max_len
    f = counts.frequency()
    columns = {"f_at": f, "supervised_f_at": counts.supervised_f(), "g_from": sum_to_the_end(counts.g())}
    metrics: dict[str, float] = {}
    for name, values in columns.items():
        for eighths in (1, 2, 4, 6):
            metrics[f"{name}_{eighths / 8:g}L"] = values[eighths * window // 8].item()
    metrics["share_le_half"] = counts.share(0, window // 2)
    metrics["share_ge_three_quarters"] = counts.share(-(-3 * window // 4), window)  # from the ceiling of 3L/4 on
    return metrics
