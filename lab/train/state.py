"""What a run trains, how far it has come, the sums of one step, and whether the run stops.

Signals become a stop that all ranks agree on, after a step or between two lengths of a probe.
A run stops on a signal, after the death of torchrun, or where a loss or gradient is not finite. On a signal the current
step or length is finished and a checkpoint saved; the exit status is 75. A step that is not finite updates nothing:
nothing is saved either, and the exit status is 1. A second Ctrl-C ends the process at once. Other signals do not:
launchers and clusters repeat them, and a repeated signal must not kill a run that is already saving.
"""

from __future__ import annotations

import math
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed import DistError
from torch.distributed.fsdp import FSDPModule
from torch.optim.lr_scheduler import LambdaLR

from lab.config import TrainConfig
from lab.core.command import EXIT_FAILURE, show
from lab.core.errors import LabError
from lab.core.launch import COPY_S, Launch, OutOfStep, exchange
from lab.core.startup import SIGNALS, Handler, RankSignals, handle_signals
from lab.model.attention.segments import ContextGroup
from lab.model.config import OptimConfig
from lab.model.decoder import Decoder
from lab.model.sharding import LoadWeights, Make, Sharding
from lab.train.agreement import CONNECTIONS, GRACE_S, await_end, open_store, raise_error

SUMS = ("loss", "targets", "tokens", "stop", "weight")
"""Nats, scored tokens, tokens, ranks asked to stop, the targets' loss weights. A metric adds its name here."""


@dataclass(frozen=True)
class StepStats:
    """Statistics of one optimizer step over all ranks; one that is `skipped` was not finite and changed nothing."""

    sums: Mapping[str, float]
    grad_norm: float
    lr: float
    skipped: bool


class StepSums:
    """The sums of one step while it happens, in one vector, which one all-reduce adds up over ranks."""

    def __init__(self, device: torch.device) -> None:
        # float64: a sum of float32 counts tokens exactly only up to 2**24, which a large global batch exceeds.
        self.vector = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self.views = dict(zip(SUMS, self.vector.unbind(), strict=True))

    def start_copy(self, norm: Tensor, bad: Tensor, lr: float) -> None:
        """Start the copy to the host of the sums, the gradient's norm and whether the step is bad; begin at zero."""
        self.lr = lr  # before the schedule moves on
        statistics = torch.cat([self.vector, norm[None], bad[None]])
        # From a GPU this copies to pinned memory without a wait. The event marks the end of the copy in the queue: to
        # wait for it is not to wait for the update, which is queued after it.
        self.copied = statistics.to("cpu", non_blocking=True)
        self.copy_done = torch.cuda.current_stream().record_event() if statistics.is_cuda else None
        self.vector.zero_()

    def read(self) -> StepStats:
        """Wait for the copy, and read it."""
        if self.copy_done is not None:
            self.copy_done.synchronize()
        *values, norm, bad = self.copied.tolist()
        return StepStats(dict(zip(SUMS, values, strict=True)), norm, self.lr, bool(bad))


@dataclass(frozen=True)
class ModelRecipe:
    """How a decoder is built and trained: `make` builds it from a seed, `start` loads the weights to start from."""

    make: Make
    optim: OptimConfig
    train: TrainConfig
    seed: int
    sharding: Sharding = field(default_factory=Sharding)
    start: LoadWeights | None = None
    autocasts: bool = False
    """Whether forward passes run under autocast to bfloat16."""


@dataclass(eq=False)
class TrainState:
    """A decoder in training. `model` is the decoder as Fabric's strategy calls it."""

    recipe: ModelRecipe
    decoder: Decoder
    model: Any
    optimizer: Any
    context: ContextGroup | None = None
    step: int = 0
    """Steps over the whole run, those without an update among them."""
    consumed: int = 0
    """Tokens over all ranks and steps."""
    skipped_steps: int = 0
    """Steps without an update, over the whole run."""
    sums: StepSums = field(init=False)
    last: StepStats | None = None
    """Statistics of the last step."""

    def __post_init__(self) -> None:
        """Start the sums, and the schedule of the learning rate."""
        self.sums = StepSums(self.device)
        optim, train = self.recipe.optim, self.recipe.train
        self.schedule = LambdaLR(
            self.inner_optimizer, lambda step: optim.lr_at(step, train.steps, train.batch_tokens) / optim.lr
        )

    @property
    def inner_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer itself, without Fabric's wrapper."""
        # The wrapper passes on what is read of it, but not what is set, such as `found_inf`.
        return getattr(self.optimizer, "optimizer", self.optimizer)

    @property
    def device(self) -> torch.device:
        return next(self.decoder.parameters()).device

    @property
    def is_sharded(self) -> bool:
        return isinstance(self.decoder, FSDPModule)

    @property
    def is_finished(self) -> bool:
        return self.step >= self.recipe.train.steps

    @property
    def precision(self) -> Callable[[], AbstractContextManager[object]]:
        """The context of forward passes: autocast, or nothing if the weights have the dtype to compute in."""
        if not self.recipe.autocasts:
            return nullcontext
        # Fabric's own precision plugin would cast all inputs, and fails on frozen dataclasses.
        return partial(torch.autocast, self.device.type, dtype=torch.bfloat16, cache_enabled=False)


def describe_error(error: BaseException) -> str:
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


@dataclass(eq=False)
class Stopping:
    """Whether the run is asked to stop, has stopped, and why. `started` is set once there is something to save."""

    launch: Launch
    # A signal reaches one rank, or all of them at different steps. `is_asked` is this rank's own; only what the
    # ranks have exchanged sets `stopped`, so that none leaves the others waiting in a collective call.
    is_asked: bool = False
    stopped: bool = False
    error: str | None = None  # why the run cannot go on
    asked_at: float | None = None
    started: threading.Event | None = None
    signals: RankSignals | None = None  # of a process that torchrun has started

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Take signals in the body; afterwards restore the handlers, or ignore signals if the process ends next.

        Where there is a `started` to set, the process reports and exits after the training.
        """
        handlers: dict[signal.Signals, Handler] = {}
        if self.signals is None:
            handlers = handle_signals(self.ask)
        else:
            before, self.signals.act = self.signals.act, self.ask
        try:
            yield
            # All is saved. A signal that is repeated now must not change the exit status, nor cut the report.
            if self.started is not None:
                handlers = dict.fromkeys(SIGNALS, signal.SIG_IGN)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            if self.signals is not None:
                self.signals.act = before

    def ask(self, number: int, frame: object = None) -> None:
        """Note a signal, by which all ranks stop after the step; a second Ctrl-C ends the process."""
        now = time.monotonic()
        # One Ctrl-C arrives two times: from the terminal, and passed on by torchrun. Only a later one is a second.
        if number == signal.SIGINT and self.asked_at is not None and now - self.asked_at > COPY_S:
            if threading.current_thread() is threading.main_thread():
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            os._exit(128 + number)
        self.asked_at = self.asked_at or now
        self.is_asked = True

    def check(self, state: TrainState, stats: StepStats) -> None:
        """Stop after a step that is not finite, or once a rank was asked, as all ranks know from the step's sums."""
        # From the first step on there is something to save, also if torchrun ends.
        if self.started is not None:
            self.started.set()
        if stats.skipped:
            what = "gradient" if math.isfinite(stats.sums["loss"]) else "loss"
            self.error = (
                f"optim.lr={state.recipe.optim.lr}: step {state.step}, which ends at {state.consumed:,} tokens, has a "
                f"{what} that is not finite; start another run with a lower optim.lr, or resume from the last "
                "checkpoint on another machine"
            )
        if self.error or stats.sums["stop"]:
            self.stopped = True

    def agree(self) -> bool:
        """Stop if any rank was asked, and return whether the run stops; a collective call."""
        if any(exchange(self.is_asked)):
            self.stopped = True
        return self.stopped

    @contextmanager
    def ending_ranks(self) -> Iterator[None]:
        """End a rank whose body fails at once, so that torchrun ends the others: it would wait for them."""
        try:
            yield
        except Exception as error:
            if self.launch.world_size == 1 or isinstance(error, LabError):
                raise
            # Before they train, a signal to one rank ends all, in turn.
            await_end(GRACE_S / 2 if CONNECTIONS else 0.0)
            # A rank that lost its peer, as gloo and NCCL say, prints one line; the traceback is where it began.
            if isinstance(error, OutOfStep | DistError) or re.search("(?i)peer|timed out|remote", str(error)):
                with suppress(DistError):
                    raise_error(open_store(self.launch))
                show(f"rank {self.launch.rank} (process {os.getpid()}) failed ({describe_error(error)})", error=True)
            else:
                traceback.print_exception(error)
            # An ordinary exit would wait for the threads of the process group, which wait for the other ranks.
            os._exit(EXIT_FAILURE)
