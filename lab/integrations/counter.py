"""The thread of lab.watch, which counts f and g of what forwards received."""

import concurrent.futures
import logging
from collections import deque

import numpy as np

from lab.core.errors import ConfigError, DataError, first_line
from lab.core.types import IGNORE
from lab.counts import PositionCounts
from lab.counts.rows import count_by_distance
from lab.evidence.methods import Repeat, in_ids
from lab.integrations.coverage import Coverage
from lab.integrations.layout import PADDING, Received, measure_lengths

LOG = logging.getLogger("lab.watch")
# The thread counts 16 forwards at once, because training drives its code out of the processor's cache in between.
TOGETHER = 16


class Counter:
    """f and g of this rank since the start; `incomplete` is None, or says why some forwards were not counted.

    It refers to no model, which its thread would keep in memory.
    """

    def __init__(self, window: int, coverage: Coverage) -> None:
        self.window, self.coverage, self.evidence = window, coverage, Repeat()
        self.counts = PositionCounts(window)
        self.incomplete: str | None = None
        self.demand_tokens = 0
        self.collected: list[Received] = []
        self.thread = concurrent.futures.ThreadPoolExecutor(1, "lab.watch")  # it ends with this object
        self.submitted: deque[concurrent.futures.Future[None]] = deque(maxlen=5)

    @property
    def is_behind(self) -> bool:
        """Whether 4 lists of forwards wait for the thread."""
        return len(self.submitted) == 5 and not self.submitted[0].done()

    def add(self, received: Received) -> None:
        """Collect a forward, and give every TOGETHER of them to the thread."""
        self.collected.append(received)
        if len(self.collected) == TOGETHER:
            self.submit()

    def submit(self) -> None:
        """Give the collected forwards to the thread."""
        self.submitted.append(self.thread.submit(self.work, self.collected))
        self.collected = []

    def wait(self) -> None:
        """Wait until the thread has counted all forwards so far."""
        if self.collected:
            self.submit()
        concurrent.futures.wait(self.submitted)

    def work(self, forwards: list[Received]) -> None:
        """Count forwards in the order in which they came."""
        for received in forwards:
            try:
                self.count(received)
            except Exception as error:
                self.note(error)

    def count(self, received: Received) -> None:
        """Add a forward to f, and to g if its token ids were copied."""
        if received.ready is not None:
            received.ready.synchronize()
        if not received.is_known:
            raise DataError(received.error)
        positions, documents = received.positions.numpy(), received.documents.numpy()
        is_attended = documents != PADDING
        if not received.divides and (is_attended & (documents != documents.max(axis=1, keepdims=True))).any():
            raise ConfigError(
                "model: tokens see other documents of their row with these arguments; use an attention that divides "
                "rows (in transformers: position_ids without a mask, model.config.use_cache=False, and one row a batch "
                "for FlashAttention)"
            )
        coverage = self.coverage
        if coverage.is_replaced and received.has_pairs:
            coverage = Coverage()
        lengths = measure_lengths(documents, coverage.chunk)
        longest = lengths.max(initial=0)
        window = coverage.window or longest
        if longest > self.window:
            raise DataError(f"window={self.window}: is shorter than a row of {longest} tokens; raise it")
        positions = positions[is_attended]
        counts = self.counts if window >= longest else PositionCounts(self.window)
        counts.add_positions(positions, np.repeat(np.arange(len(lengths)), lengths))
        if counts is not self.counts:
            if counts.has_gaps:
                raise DataError(
                    "position_ids: have gaps, which are not counted with a sliding window; pass ids without gaps"
                )
            self.counts.gapped[:window] += counts.frequency()[:window]
        if received.tokens is None or received.targets is None:
            return
        tokens, targets = received.tokens.numpy()[is_attended], received.targets.numpy()[is_attended]
        # Any negative label has no loss, and IGNORE is the only one that evidence methods know.
        is_supervised = targets >= 0
        targets[~is_supervised] = IGNORE
        distances = self.evidence.distances(tokens, targets, lengths.tolist())
        # The evidence of a target d tokens back is d - 1 before the token that predicts it.
        distances[distances > window] = 0
        evidence = count_by_distance(distances[is_supervised])
        self.counts.add_evidence(evidence, evidence, count_by_distance(in_ids(distances, positions)[is_supervised]))
        self.demand_tokens += len(tokens)

    def note(self, error: Exception) -> None:
        """Log the first error, and mark the counts as incomplete."""
        if self.incomplete is None:
            self.incomplete = f"{type(error).__name__}: {first_line(error)}"
            LOG.warning("not all forwards are counted: %s", self.incomplete)
