"""Count f and g, and measure the retrieval range, in any training loop: lab.watch.

    watch = lab.watch(model, tokenizer, window=2048)
    watch.frequency(), watch.demand()        # so far on this rank
    watch.probe(tests=64)                    # a table by distance
    watch.plot(), watch.save("name.jsonl")   # of the last probe; all probes, for probe-lab compare
    watch.dropped(lengths)                   # f of whole documents, and what a packer loses of it

A hook before the model's forward notes what it receives. Token ids go to the host without a wait, where a thread
counts them. Only forwards that train are counted, and under activation checkpointing only once.
"""

import inspect
import json
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from lab.core.chart import Axis, Rule, plot_lines, set_theme
from lab.core.errors import ConfigError, DataError, abbreviate, first_line
from lab.core.files import write_atomic
from lab.core.launch import exchange, sum_over_ranks
from lab.core.schema import Length, Section
from lab.core.types import IntArray, Row
from lab.counts import COUNTED, PositionCounts
from lab.data.encoding import inside_text
from lab.integrations import layout, retrieval
from lab.integrations.counter import LOG, Counter
from lab.integrations.coverage import read_coverage
from lab.integrations.experiment import CausalityTest
from lab.integrations.tokenizer_adapter import TextTokenizer
from lab.model.huggingface.foreign import count_positions
from lab.probe.effective_distance import DistanceProbe
from lab.probe.heads import reading, shares_by_head
from lab.probe.reach import format_reach

CLOSED = nn.Identity()  # in place of a model
LOGGED = ("reach", "f_half", "g_half", "accuracy", "log_prob")  # by trackers


def first_reason(reason: str | None) -> str | None:
    """Return the first reason that a rank gives, if any; a collective call."""
    return next(filter(None, exchange(reason)), None)


class Lengths(Section):
    """The arguments of a watcher that are numbers."""

    window: Length
    """Tokens of the longest row."""
    sliding_window: Length | None = None
    """Tokens that a layer sees, the token itself included. Default: that of the model's config."""
    attention_chunk_size: Length | None = None
    """Tokens of a chunk. Default: that of the model's config."""


class Hook:
    """The hook of a watched model. A copy or a file of the model has one that counts nothing."""

    observe: Callable[..., None] | None = None

    def __call__(self, *arguments: object) -> None:
        if self.observe is not None:
            self.observe(*arguments)

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Hook, ()


class Watcher:
    """The counts of a model in training; after `close`, or a `with` block, it refers to the model no more."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: TextTokenizer | None = None,
        *,
        window: int,
        input: str = "input_ids",
        positions: str | None = None,
        targets: str | None = None,
        boundaries: str | None = None,
        mask: str | None = None,
        sliding_window: int | None = None,
        attention_chunk_size: int | None = None,
        logits: Callable[[Any], Tensor] = retrieval.find_logits,
        haystack: str | None = None,
    ) -> None:
        """Register the hook.

        `window` is the longest row in tokens. `input` names the argument of token ids; `positions`, `targets` (of each
        token the next one), `boundaries` and `mask` name those that state the layout. Default: the names that
        lab.integrations.layout lists. `sliding_window` and `attention_chunk_size` are in tokens; default: those of the
        model's config. `logits` finds the logits, (B, T, vocabulary), in the output. `haystack` is the text in which
        probes hide numbers; default: generated text.

        Raises: ConfigError, DataError.
        """
        Lengths(window=window, sliding_window=sliding_window, attention_chunk_size=attention_chunk_size)
        self.tokenizer, self.window, self.input = tokenizer, window, input
        self.model, self.inner = model, retrieval.unwrap(model)
        self.parameters = inspect.signature(self.inner.forward).parameters
        takes_any = any(parameter.kind.name == "VAR_KEYWORD" for parameter in self.parameters.values())
        self.names = dict(layout.NAMES)
        for option, name in zip(layout.NAMES, (input, positions, targets, boundaries, mask), strict=True):
            if name is None:
                continue
            if name not in self.parameters and not takes_any:
                raise ConfigError(
                    f"{option}={name}: is no argument of the model's forward; use one of: {', '.join(self.parameters)}"
                )
            self.names[option] = (name,)
        if tokenizer is not None:
            inside_text(retrieval.read_tokenizer(tokenizer))
        coverage = read_coverage(self.inner)
        if sliding_window or attention_chunk_size:
            coverage = coverage._replace(window=sliding_window, chunk=attention_chunk_size)
        self.experiment = CausalityTest(self.names, logits, coverage.is_hybrid)
        self.restored, self.counter = PositionCounts(window), Counter(window, coverage)
        self.haystack, self.forwards_in_eval = haystack, 0
        self.tables: list[pd.DataFrame] = []  # of the probes so far
        # Inputs by which the second forward of activation checkpointing is recognised.
        self.recent: deque[tuple[int, int]] = deque(maxlen=256)
        hook = Hook()
        hook.observe = self.observe
        self.hook = model.register_forward_pre_hook(hook, with_kwargs=True)

    # torch.compile cannot trace queues, threads and data pointers: the hook runs outside of compiled code.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def observe(self, module: nn.Module, args: tuple[object, ...], kwargs: Row) -> None:
        """Note what a forward that trains receives, without an error, and without a wait for the device."""
        if not torch.is_grad_enabled():
            return
        if not self.inner.training:
            self.forwards_in_eval += 1
            if self.forwards_in_eval == 100:
                self.counter.note(
                    ConfigError(
                        "model.training=False: 100 forwards with gradients are not counted in eval mode; "
                        "call model.train() to train"
                    )
                )
            return
        self.forwards_in_eval = 0
        try:
            arguments = dict(zip(self.parameters, args, strict=False)) | kwargs
            if not self.is_repeated(arguments.get(self.input)):
                divides = self.experiment.examine(self.model, self.inner, arguments, len(args))
                self.enqueue(layout.read_layout(arguments, self.names), divides)
        # Of any type: the training must not depend on its being counted.
        except Exception as error:
            self.counter.note(error)

    def is_repeated(self, tokens: object) -> bool:
        """Return whether activation checkpointing runs a counted forward again."""
        if not isinstance(tokens, Tensor):
            return False
        # It does so within the backward, on the same tensor. torch.utils.checkpoint reads the same private number.
        key = tokens.data_ptr(), tokens.numel()
        is_counted = key in self.recent
        self.recent.append(key)
        return is_counted and torch._C._current_graph_task_id() != -1

    def enqueue(self, received: layout.Received, divides: bool) -> None:
        """Copy what was received to the host for the thread."""
        received.divides = divides
        if self.counter.is_behind:
            received.tokens = received.targets = None
        received.copy_to_host()
        self.counter.add(received)

    def total(self, reduce: bool = False) -> PositionCounts:
        """Wait for the thread; return what was restored and counted, with `reduce` on all ranks, a collective call."""
        self.counter.wait()
        total = self.restored + self.counter.counts
        if reduce:
            for name in COUNTED:
                setattr(total, name, sum_over_ranks(getattr(total, name)))
            self.counter.incomplete = first_reason(self.incomplete)
        return total

    def frequency(self, *, reduce: bool = False) -> IntArray:
        """Return the position frequency f(i) so far on this rank, or with `reduce` over all ranks, a collective call.

        Shapes: int64 (window,).
        Source: arXiv:2410.18745, Eq. 2.
        """
        return self.total(reduce).frequency()

    def demand(self, *, reduce: bool = False) -> IntArray:
        """Return the retrieval demand g(d) so far on this rank, or with `reduce` over all ranks, a collective call.

        Shapes: int64 (window,), supervised targets whose evidence is d tokens back.
        """
        return self.total(reduce).g()

    @property
    def demand_share(self) -> float:
        """Share of this rank's tokens since the start whose targets were counted for g."""
        self.counter.wait()
        tokens = self.counter.counts.tokens
        return self.counter.demand_tokens / tokens if tokens else 1.0

    def dropped(self, lengths: Iterable[int], *, epochs: float = 1, reduce: bool = False) -> pd.DataFrame:
        """Compare f so far with f of whole documents, of which a packer may crop, split, drop or join some.

        A watcher receives rows alone, so that `lengths` are yours: the tokens of each document before packing, with the
        special tokens that rows have. `epochs` is how often training has read these documents so far; below 1 it has
        read a random part of them. With `reduce` they are the documents of all ranks, and the call is collective.

        The index is the distance, in tokens below the window. `f_documents` is f of the whole documents times `epochs`,
        `f` that of the rows, and `f_lost` the difference: negative where rows join documents, and also what the model's
        own sliding window or chunks do not see. `attrs` has the tokens in rows, `kept`, and those missing, `cut`.

        Raises: ConfigError, DataError.
        Example:
            dropped = watch.dropped(map(len, documents), epochs=trainer.state.epoch)
            dropped.attrs["cut"], dropped.f_lost[1024]
        """
        if not isinstance(epochs, Real) or not 0 <= epochs < np.inf:
            raise ConfigError(f"epochs={epochs}: must be a number >= 0; pass how often training has read the documents")
        try:
            documents = np.array(array("I", lengths), int)
        except (TypeError, OverflowError):
            raise ConfigError(
                f"lengths={abbreviate(lengths)}: must be whole numbers >= 0 and < 2^32; pass map(len, ids) of documents"
            ) from None
        counts = PositionCounts(documents.max(initial=self.window))
        counts.add_segments(documents)
        whole, f = epochs * counts.frequency()[: self.window], self.frequency(reduce=reduce)
        table = pd.DataFrame({"f_documents": whole, "f": f, "f_lost": whole - f})
        table.attrs |= {"kept": int(f[0]), "cut": int(whole[0] - f[0])}  # f(0) is the number of tokens
        return table

    def probe(
        self, tests: int = 64, *, distances: Sequence[int] | None = None, threshold: float = 0.8, seed: int = 0
    ) -> pd.DataFrame:
        """Measure retrieval accuracy by distance, in tokens, with f and g of all ranks so far; a collective call.

        `attrs` has `reach`, the largest distance at which accuracy is at least `threshold`, with its limits. An error
        of a forward is logged, and the table is then empty; on several ranks it is raised.

        Raises: LabError, before the first forward, for arguments by which no test can be built, on all ranks.
        """
        built = self.build_tests(tests, distances, threshold, seed)
        total = self.total(reduce=True)
        try:
            with retrieval.as_evaluated(self.model):
                table = retrieval.tabulate_tests(retrieval.run_tests(built, self.compute_logits), threshold)
        except ConfigError:
            raise
        except Exception as error:
            # The other ranks wait within a forward that failed here. Only an end of the process frees them.
            if retrieval.ranks()[1] > 1:
                raise
            LOG.warning("no probe: %s", first_line(error))
            table = pd.DataFrame(columns=retrieval.COLUMNS, dtype=np.int64)
        f, g, half = total.frequency(), total.g(), self.window // 2
        table["f"], table["g"] = f[table["distance"]], g[table["distance"]]
        # Plain numbers, which files of tables can hold.
        table.attrs |= {"f_half": int(f[half]), "g_half": int(g[half:].sum()), "incomplete": self.incomplete}
        # What a file of results has.
        table.attrs.update(n=built.tests, threshold=threshold, consumed_tokens=total.tokens, **built.describe_tests())
        self.tables.append(table)
        return table

    def heads(self, tests: int = 16, *, distances: Sequence[int] | None = None, seed: int = 0) -> pd.DataFrame:
        """Measure which heads retrieve: the attention on the answer's copy by distance, layer and head.

        Of one of transformers' models, or of the lab's own decoder; the same on every rank. Source: lab/probe/heads.py.

        Raises: LabError for other models, and for arguments by which no test can be built, on all ranks.
        """
        built = self.build_tests(tests, distances, seed=seed)
        rows: list[Row] = []
        with retrieval.as_evaluated(self.model), reading(self.inner) as decoder:
            for distance in built.distances:
                rows += shares_by_head(decoder, built, distance)
        return pd.DataFrame(rows)

    def build_tests(
        self, tests: int, distances: Sequence[int] | None = None, threshold: float = 0.8, seed: int = 0
    ) -> DistanceProbe:
        """Build the tests of a probe on all ranks; a collective call.

        Raises: LabError on every rank if one of them cannot.
        """
        failed = reason = None
        try:
            if self.model is CLOSED:
                raise ConfigError("probe: is not possible after close(); call it before")
            limit = count_positions(self.inner)
            if limit is not None and self.window > limit:
                raise ConfigError(f"window={self.window}: must be <= {limit}, the positions of the model; lower it")
            built = retrieval.build_tests(
                self.tokenizer, self.window, tests, distances, seed, threshold, haystack=self.haystack
            )
        # Of any type: the other ranks wait for the reason.
        except Exception as error:
            failed, reason = error, first_line(error)
        if reason := first_reason(reason):
            raise failed or ConfigError(reason)
        return built

    def compute_logits(self, tokens: Tensor, n: int) -> Tensor:
        """Run the model; return at least the logits of the last `n` tokens."""
        # Arguments of transformers. All logits of a long prompt and a large vocabulary would take gigabytes.
        options: Row = {"use_cache": False, "logits_to_keep": n}
        options = {name: value for name, value in options.items() if name in self.parameters}
        options[self.input] = tokens.to(next(self.model.parameters()).device)
        try:
            return self.experiment.logits(self.model(**options))
        except IndexError as error:
            raise ConfigError(
                f"window={self.window}: the model has no such position or token ({first_line(error)}); lower it, or "
                "pass the model's own tokenizer"
            ) from error

    def summary(self, tests: int = 64) -> dict[str, float]:
        """Probe, and return what a tracker logs, by name; a collective call.

        `reach` is missing where accuracy is below the threshold at the first distance. `accuracy` and `log_prob` are
        means over the distances, `f_half` and `g_half` are f at half of the window and the sum of g from there on.
        """
        table = self.probe(tests)
        values = {**table.attrs, "accuracy": table["score"].mean(), "log_prob": table["log_prob"].mean()}
        return {f"retrieval/{name}": float(values[name]) for name in LOGGED if pd.notna(values.get(name))}

    def plot(self) -> Any:
        """Plot the last probe: accuracy by distance with its limits.

        A notebook shows this chart of Altair; `plot().save("reach.png")` writes it.

        Raises: MissingPackage; ConfigError before a probe.
        """
        if not self.tables:
            raise ConfigError("plot: has no probe to show; call watch.probe() first")
        table = self.tables[-1]
        y = Axis("score", "retrieval accuracy", limits=(0, 1), percent=True)
        title = f"{format_reach(table.attrs)} at threshold {table.attrs['threshold']:g}"
        return set_theme(
            plot_lines(table, "distance", y, limits=True, rules=[Rule("y", table.attrs["threshold"])], title=title)
        )

    def save(self, path: str | Path) -> None:
        """Write the probes of this process so far to a file .jsonl, which probe-lab compare reads; replace an old file.

        A probe has a line for reach, and one for each distance. The name of the file is that of the model.

        Raises: OSError, DiskError.
        """
        path, lines = Path(path), ""
        for table in self.tables:
            # 49 times a share of 1 / 49 is less than 1.
            tests = table.assign(metric="found_by_distance", found=table.eval("floor(n * score + 0.5)"))
            for row in ({"metric": "reach"}, *tests.to_dict("records")):
                lines += json.dumps({"model": path.stem, "method": "as trained", **table.attrs, **row}) + "\n"
        write_atomic(path, lines.encode())

    def __repr__(self) -> str:
        """Say what was counted and measured, without a wait for the thread."""
        counted = f"{self.restored.tokens + self.counter.counts.tokens:,} tokens"
        reach = format_reach(self.tables[-1].attrs) if self.tables else "not probed"
        return f"Watcher({type(self.inner).__name__}, window={self.window:,}, {counted}, {reach})"

    def state_dict(self) -> Row:
        """Return the counts of all ranks, the same on each; a collective call."""
        return {**self.total(reduce=True).to_dict(), "incomplete": self.incomplete}

    def load_state_dict(self, state: Row) -> None:
        """Continue from saved counts, on any number of ranks; the first rank keeps them. Without any, print a line.

        Raises: DataError for counts of another window.
        """
        if not state:
            self.counter.note(DataError("counts: the checkpoint has none, so that f and g begin here"))
            return
        if state.get("max_len") != self.window:
            raise DataError(f"window={self.window}: the saved counts are of {state.get('max_len')}; use that window")
        # A sum over the ranks would count what each rank restored once for each.
        if retrieval.ranks()[0] == 0:
            self.restored = PositionCounts.from_dict(state)
        self.counter.incomplete = self.incomplete or state.get("incomplete")

    @property
    def incomplete(self) -> str | None:
        """None, or why some forwards were not counted."""
        return self.counter.incomplete

    def close(self) -> None:
        """Remove the hook, end the thread and forget the model; what was counted stays."""
        self.hook.remove()
        self.counter.wait()
        self.counter.thread.shutdown()
        self.model = self.inner = CLOSED

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


watch = Watcher  # the name that reads as what it does
