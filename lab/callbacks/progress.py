"""The progress bar: consumed tokens, loss, tokens per second, the last effective length."""

from __future__ import annotations

import sys
from typing import Any, TextIO

import lightning
from lightning.pytorch.callbacks import Callback
from tqdm import tqdm

from lab.callbacks.probing import Probing
from lab.callbacks.recording import Recording

REFRESH_S = 0.2
LOG_REFRESH_S = 10.0  # where the output is a file, a line this often is enough
SHOWN = "{n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}"


class Lines:
    """A stream for a bar that writes each of its states as a line, for files and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        """Write a state without what moves a terminal's cursor; tqdm writes line ends by themselves."""
        state = text.strip()
        if state:
            self.stream.write(f"{state}\n")

    def flush(self) -> None:
        """Flush the stream."""
        self.stream.flush()


class Progress(Callback):
    """Shows the latest values of the other callbacks; writes to stderr on the first rank only."""

    def __init__(self, recording: Recording, probing: Probing, total_tokens: int) -> None:
        self.recording, self.probing, self.total_tokens = recording, probing, total_tokens
        self.bar: tqdm[Any] | None = None

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        """Open the bar at the current number of tokens."""
        if not trainer.is_global_zero:
            return
        terminal = sys.stderr.isatty()
        self.bar = tqdm(
            total=self.total_tokens,
            initial=module.consumed,
            unit="tok",
            unit_scale=True,
            desc="train",
            smoothing=0,  # the mean rate since the start, so that what remains includes probes and saves
            file=sys.stderr if terminal else Lines(sys.stderr),
            mininterval=REFRESH_S if terminal else LOG_REFRESH_S,
            bar_format="{desc} {percentage:3.0f}%" + ("|{bar:20}| " if terminal else " ") + SHOWN,
        )
        self.probing.report = lambda line: self.bar and self.bar.set_postfix_str(line)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Advance by the step's tokens."""
        if self.bar is None or not module.finished:
            return
        latest = self.recording.latest
        if latest:
            length = self.probing.latest
            loss = "-" if latest["loss"] is None else format(latest["loss"], ".3f")
            text = f"loss {loss}, {latest['tokens_per_s']:,.0f} tok/s"
            self.bar.set_postfix_str(text + ("" if length is None else f", effective length {length}"), refresh=False)
        self.bar.update(module.consumed - self.bar.n)

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        """Close the bar."""
        self.close()

    def on_exception(self, trainer: lightning.Trainer, module: Any, exception: BaseException) -> None:
        """Close the bar."""
        self.close()

    def close(self) -> None:
        """Close the bar and keep its last line."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None
