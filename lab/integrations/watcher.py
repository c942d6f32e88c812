"""Count f and g, and measure the retrieval range, in any training loop: lab.watch.

    watch = lab.watch(model, tokenizer, window=2048)
    ...                                      # their own training
    watch.frequency(), watch.demand()        # so far on this rank
    watch.probe(tests=64)                    # a table by distance

A hook before the model's forward notes what it receives. Token ids go to the host without a wait, where a thread counts
them by lab.counts and lab.evidence, as the lab's own training does. Only forwards that train are counted: in training
mode, with gradients, and once under activation checkpointing.
"""

from __future__ import annotations

import inspect
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from lab.counts import COUNTED, PositionCounts
from lab.counts.rows import by_distance
from lab.errors import ConfigError, DataError, first_line
from lab.evidence.base import IGNORE, Evidence, IntArray, in_ids
from lab.evidence.repeat import Repeat
from lab.integrations import retrieval
from lab.integrations.layout import PADDING, Received, copy_to_host, read_arguments, resolve_layout, shift
from lab.integrations.retrieval import COLUMNS, ProbeStopped, as_evaluated, ranks, run_tests, tabulate
from lab.launch import sum_over_ranks
from lab.probe.effective_distance import DistanceProbe

LOG = logging.getLogger("lab.watch")
MOST_WAITING = 64  # forwards that may wait for the thread; g of more is not counted, which the counted share tells
REMEMBERED = 256  # inputs by which the second forward of activation checkpointing is recognised


class Forward(NamedTuple):
    """What the thread counts of one forward; `ready` is recorded after the copies to the host."""

    received: Received
    targets: Tensor | None
    is_shifted: bool
    counts_demand: bool
    ready: torch.cuda.Event | None


class Watcher:
    """The counts of a model in training; made by `lab.watch`.

    `incomplete` is None, or says why some forwards were not counted. `demand_share` is the share of the tokens whose
    targets were looked at for g.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        window: int,
        input: str = "input_ids",
        labels: str = "labels",
        targets: str = "targets",
        logits: Callable[[Any], Tensor] | None = None,
        haystack: str | None = None,
        demand_every: int = 1,
        evidence: Evidence | None = None,
    ) -> None:
        """Register the hook.

        `window` is the longest row in tokens. `input` names the argument of token ids, `labels` that of labels as
        transformers takes them, `targets` that of labels already shifted by one. `logits` takes the logits, (B, T,
        vocabulary), out of what the forward returns. `haystack` is the text in which probes hide numbers; default:
        generated text. g is counted in every `demand_every`-th forward.

        Raises: ConfigError, DataError.
        """
        if demand_every < 1:
            raise ConfigError(f"demand_every={demand_every}: must be >= 1; use a larger number to count g more rarely")
        self.model, self.tokenizer, self.window = model, tokenizer, window
        self.inner = retrieval.unwrap(model)
        self.signature = inspect.signature(self.inner.forward)
        if input not in self.signature.parameters:
            names = ", ".join(self.signature.parameters)
            raise ConfigError(f"input={input}: is no argument of the model's forward; use one of: {names}")
        self.names = {"input": input, "labels": labels, "targets": targets}
        self.demand_every, self.evidence = demand_every, evidence or Repeat()
        self.take_logits, self.haystack = logits or retrieval.find_logits, haystack
        self.restored = PositionCounts(window)
        self.counts = PositionCounts(window)
        self.incomplete: str | None = None
        self.forwards = 0
        self.demand_tokens = 0
        self.recent: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
        self.queue: queue.Queue[Forward] = queue.Queue()
        self.thread: threading.Thread | None = None
        self.hook = model.register_forward_pre_hook(self.observe, with_kwargs=True)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def observe(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what a forward that trains receives; it never raises, and never waits for the device."""
        if not (self.inner.training and torch.is_grad_enabled()):
            return
        try:
            arguments = self.bind(args, kwargs)
            tokens = arguments.get(self.names["input"])
            received = read_arguments(tokens, arguments)
            received.has_cache = self.keeps_cache(arguments)
            if not self.is_repeated(received.tokens):
                self.enqueue(received, arguments)
        except Exception as error:  # of any kind: the training must not depend on it
            self.note(error)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Name the arguments of a forward, those of its **kwargs too."""
        named = dict(self.signature.bind_partial(*args, **kwargs).arguments)
        for parameter in self.signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                named |= named.pop(parameter.name, {})
        return named

    def keeps_cache(self, arguments: dict[str, Any]) -> bool:
        """Return whether a model of transformers keeps keys, other than under FlashAttention, which ignores that."""
        config = getattr(self.inner, "config", None)
        use_cache = arguments.get("use_cache")
        if use_cache is None:
            use_cache = getattr(config, "use_cache", False)
        return bool(use_cache) and "flash" not in str(getattr(config, "_attn_implementation", ""))

    def is_repeated(self, tokens: Tensor) -> bool:
        """Return whether activation checkpointing runs a forward again, within the backward, that was counted."""
        key = tokens.data_ptr(), tokens.numel()
        is_in_backward = torch._C._current_graph_task_id() != -1  # which torch.utils.checkpoint asks too
        if is_in_backward and key in self.recent:
            return True
        self.recent.append(key)
        return False

    def enqueue(self, received: Received, arguments: dict[str, Any]) -> None:
        """Copy the arguments to the host and give them to the thread."""
        shifted = arguments.get(self.names["targets"], arguments.get("shift_labels"))
        targets = arguments.get(self.names["labels"]) if shifted is None else shifted
        counts_demand = self.forwards % self.demand_every == 0 and self.queue.qsize() < MOST_WAITING
        self.forwards += 1
        is_on_gpu = received.tokens.device.type == "cuda"
        if not counts_demand:  # f needs the layout, and no ids
            received.tokens = received.tokens.to("meta")
        for name, value in vars(received).items():
            if isinstance(value, Tensor) and not value.is_meta:
                setattr(received, name, copy_to_host(value))
        targets = None if targets is None or not counts_demand else copy_to_host(torch.atleast_2d(targets))
        ready = None
        if is_on_gpu:
            ready = torch.cuda.Event()
            ready.record()
        if self.thread is None:
            self.thread = threading.Thread(target=self.work, name="lab.watch", daemon=True)
            self.thread.start()
        self.queue.put(Forward(received, targets, shifted is not None, counts_demand, ready))

    def work(self) -> None:
        """Count forwards in the order in which they came."""
        while True:
            forward = self.queue.get()
            try:
                self.count(forward)
            except Exception as error:  # of any kind: the training must not depend on it
                self.note(error)
            finally:
                self.queue.task_done()

    def count(self, forward: Forward) -> None:
        """Add a forward to f, and to g where it is counted."""
        if forward.ready is not None:
            forward.ready.synchronize()
        positions, documents = resolve_layout(forward.received)
        is_attended = documents != PADDING
        rows = np.arange(len(documents))[:, None]
        runs = (rows * (documents.max() + 1) + documents)[is_attended]  # a number for each row and document
        lengths = np.diff(np.flatnonzero(np.diff(runs, prepend=-1, append=-1)))
        ids = positions[is_attended]
        if (np.diff(ids) == 1)[np.diff(runs) == 0].all():
            self.counts.add_segments(lengths)
        else:  # ids with gaps, or out of order, which is rejected there
            self.counts.add_positions(positions, documents)
        if forward.counts_demand:
            self.count_demand(forward, documents, ids, lengths.tolist())

    def count_demand(self, forward: Forward, documents: IntArray, ids: IntArray, lengths: list[int]) -> None:
        """Add the supervised targets of a forward to g."""
        rows = forward.received.tokens.numpy()
        if forward.targets is None:
            targets = shift(rows, documents)
        elif forward.is_shifted:
            targets = forward.targets.numpy()
        else:
            targets = shift(forward.targets.numpy())
        is_attended = documents != PADDING
        tokens, targets = rows[is_attended], targets[is_attended]
        is_supervised = targets >= 0
        distances = self.evidence.distances(tokens, np.where(is_supervised, targets, IGNORE), lengths)
        evidence = by_distance(distances[is_supervised])
        self.counts.add_evidence(evidence, evidence, by_distance(in_ids(distances, ids)[is_supervised]))
        self.demand_tokens += len(tokens)

    def note(self, error: Exception) -> None:
        """Log the first error, and mark the counts as incomplete."""
        if self.incomplete is None:
            self.incomplete = f"{type(error).__name__}: {first_line(error)}"
            LOG.warning("not all forwards are counted: %s", self.incomplete)

    def total(self) -> PositionCounts:
        """Wait for the thread and add what was restored."""
        self.queue.join()
        return self.restored + self.counts

    def frequency(self, *, reduce: bool = False) -> IntArray:
        """Return the position frequency f(i) so far on this rank, or with `reduce` over all ranks, a collective call.

        Shapes: int64 (window,).
        Source: arXiv:2410.18745, Eq. 2.
        """
        frequency = self.total().frequency()
        return sum_over_ranks(frequency) if reduce else frequency

    def demand(self, *, reduce: bool = False) -> IntArray:
        """Return the retrieval demand g(d) so far on this rank, or with `reduce` over all ranks, a collective call.

        Shapes: int64 (window,), supervised targets whose evidence lies d tokens back.
        """
        demand = np.asarray(self.total().g(), dtype=np.int64)  # without loss weights they are whole numbers
        return sum_over_ranks(demand) if reduce else demand

    @property
    def demand_share(self) -> float:
        """Share of this rank's tokens since the start whose targets were counted for g."""
        self.queue.join()
        return self.demand_tokens / self.counts.tokens if self.counts.tokens else 1.0

    def probe(
        self,
        tests: int = 64,
        *,
        distances: Sequence[int] | None = None,
        threshold: float = 0.8,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Measure retrieval accuracy by distance, in tokens, with f and g of all ranks so far; a collective call.

        `attrs` has `reach`, the largest distance at which accuracy is at least `threshold`, with its limits. The model
        is left as it was. An error is logged, and the table is then empty; one within a forward of several ranks is
        raised, as the others wait in it.
        """
        device = next(self.inner.parameters()).device

        def build() -> DistanceProbe:
            return retrieval.build_tests(
                self.tokenizer, self.window, haystack=self.haystack, tests=tests, distances=distances, seed=seed
            )

        def logits(tokens: Tensor, n: int) -> Tensor:
            # names of transformers; all logits of a long prompt and a large vocabulary would take gigabytes
            known = {"use_cache": False, "logits_to_keep": n}
            options = {name: value for name, value in known.items() if name in self.signature.parameters}
            return self.take_logits(self.model(**{self.names["input"]: tokens.to(device)}, **options))

        try:
            with as_evaluated(self.model):
                results = run_tests(build, logits)
        except Exception as error:
            if ranks()[1] > 1 and not isinstance(error, ProbeStopped):
                raise
            LOG.warning("no probe: %s", first_line(error))
            return pd.DataFrame(columns=list(COLUMNS))
        table = tabulate(results, threshold)
        total = self.sum_of_ranks()
        table["f"], table["g"] = total.frequency()[table["distance"]], total.g()[table["distance"]]
        return table

    def summary(self, tests: int = 64) -> dict[str, float]:
        """Probe, and return what a tracker logs, by name; a collective call.

        `reach` is missing where accuracy is below the threshold at the first distance. `accuracy` is the mean over the
        distances, `f_half` and `g_half` are f at half of the window and the sum of g from there on.
        """
        table = self.probe(tests)
        total = self.sum_of_ranks()
        half = self.window // 2
        values: dict[str, float] = {"f_half": int(total.frequency()[half]), "g_half": int(total.g()[half:].sum())}
        if len(table):
            values |= {"accuracy": float(table["score"].mean()), "log_prob": float(table["log_prob"].mean())}
            values |= {name: table.attrs[name] for name in ("reach",) if table.attrs[name] is not None}
        return {f"retrieval/{name}": float(value) for name, value in values.items()}

    def sum_of_ranks(self) -> PositionCounts:
        """Add up the counts of all ranks; a collective call."""
        total = self.total()
        for name in COUNTED:
            setattr(total, name, sum_over_ranks(getattr(total, name)))
        return total

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of all ranks, the same on each; a collective call."""
        return self.sum_of_ranks().to_dict() | {"incomplete": self.incomplete}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved counts, on any number of ranks; the first one holds what is restored.

        Raises: DataError for counts of another window.
        """
        if state["max_len"] != self.window:
            raise DataError(f"window={self.window}: the saved counts are of {state['max_len']}; use that window")
        if ranks()[0] == 0:
            self.restored = PositionCounts.from_dict(state)
        self.incomplete = self.incomplete or state.get("incomplete")

    def close(self) -> None:
        """Remove the hook; what was counted stays."""
        self.hook.remove()


watch = Watcher  # the name that reads as what it does
