"""The one-number tests of `probe-lab distance` for any causal model, scored by teacher forcing.

A test hides a number d tokens before the end of the prompt (lab/probe/effective_distance.py). The right answer follows
the prompt in one forward. The number is retrieved if each of its tokens has the largest logit after the right ones:

    retrieved = for all tokens j of the number:  argmax_v logits[n_prompt + j - 1, v] = answer[j]
    log_prob  = sum over j of log softmax(logits[n_prompt + j - 1])[answer[j]]

Greedy decoding answers with the same number, as each of its tokens then is the one decoded. No `generate` is needed.
Several ranks divide the tests. Before every forward they exchange a flag whether all can go on, so that none waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd
import torch
from tokenizers import Tokenizer
from torch import Tensor, distributed, nn

from lab.counts import PositionCounts
from lab.data.config import Synthetic
from lab.data.encoding import own_settings
from lab.errors import DataError, first_line
from lab.model.loss import IGNORE
from lab.probe.config import ProbeConfig
from lab.probe.effective_distance import TOKENS_AT_ONCE, DistanceProbe, OneNumberCase, lay_out_answers
from lab.probe.limits import LengthResult, exact_limits
from lab.probe.needles import FILLER_INDEX, FILLER_TOKENS
from lab.probe.reach import reach

Logits = Callable[[Tensor, int], Tensor]
"""int64 (B, T) and n, of which the last n tokens' logits are needed -> (B, n or T, vocabulary)."""
COLUMNS = ("distance", "n", "score", "low", "high", "log_prob", "f", "g")


def read_tokenizer(tokenizer: Any) -> Tokenizer:
    """Return a copy of a tokenizer of `tokenizers`, or of the one below transformers' fast tokenizer.

    Raises: DataError for a tokenizer of another library.
    """
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)  # transformers' own name
    if not isinstance(inner, Tokenizer):
        rule = "must be a tokenizers.Tokenizer, or a fast tokenizer of transformers"
        raise DataError(f"tokenizer={type(tokenizer).__name__}: {rule}; for instance Tokenizer.from_file(PATH)")
    copy = Tokenizer.from_str(inner.to_str())
    for switch_off in own_settings(copy).values():
        switch_off()
    return copy


def build_tests(
    tokenizer: Any, window: int, *, haystack: str | None, tests: int, distances: Sequence[int] | None, seed: int
) -> DistanceProbe:
    """Build the tests of a window of tokens; without a haystack the filler is the lab's generated text.

    Raises: ConfigError, DataError.
    """
    config = ProbeConfig(distance_tests=tests, distances=None if distances is None else tuple(distances), seed=seed)
    source = None if haystack is None else "haystack"
    text = Synthetic().filler(FILLER_INDEX, FILLER_TOKENS) if haystack is None else haystack
    return DistanceProbe(config, read_tokenizer(tokenizer), text, window=window, stop_id=None, source=source)


class ProbeStopped(Exception):
    """Raised on every rank where one of them could not go on, before a forward."""


def ranks() -> tuple[int, int]:
    """Return the rank of this process and how many there are."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def agree(error: Exception | None, device: torch.device) -> None:
    """Raise ProbeStopped on all ranks if one has an error; a collective call."""
    has_error = torch.tensor(float(error is not None), device=device)
    if ranks()[1] > 1:
        distributed.all_reduce(has_error, op=distributed.ReduceOp.MAX)
    if has_error.item():
        raise ProbeStopped(first_line(error) if error else "another rank could not go on, and says why") from error


def run_tests(build: Callable[[], DistanceProbe], logits: Logits, device: torch.device) -> tuple[DistanceProbe, Tensor]:
    """Build the tests and run them all, divided among the ranks; a collective call.

    Shapes: float64 (2, distances, tests): retrieved, 0 or 1, and log-probabilities in nats.
    Raises: ProbeStopped on every rank if one of them cannot build a test.
    """
    try:
        probe = build()
    except Exception as failure:
        agree(failure, device)
        raise
    agree(None, device)
    tests = [(place, test) for place in range(len(probe.distances)) for test in range(probe.config.distance_tests)]
    rank, n_ranks = ranks()
    at_once = max(1, TOKENS_AT_ONCE // probe.window)
    results = torch.zeros((2, len(probe.distances), probe.config.distance_tests), dtype=torch.float64, device=device)
    # every rank runs the same number of forwards, as FSDP gathers weights in each: one without tests left repeats some
    own = tests[rank::n_ranks]
    for start in range(0, -(-len(tests) // n_ranks), at_once):
        chosen = own[start : start + at_once]
        error: Exception | None = None
        cases: list[OneNumberCase] = []
        try:
            cases = [probe.case(probe.distances[place], test) for place, test in chosen or tests[:1]]
        except Exception as failure:
            error = failure
        agree(error, device)
        scores = score_answers(logits, cases, probe.budget, device)
        for (place, test), score in zip(chosen, scores, strict=False):
            results[:, place, test] = score
    if n_ranks > 1:
        distributed.all_reduce(results)
    return probe, results.cpu()


def score_answers(logits: Logits, cases: Sequence[OneNumberCase], budget: int, device: torch.device) -> Tensor:
    """Score the right answer of each test: whether its number is retrieved, and its log-probability in nats.

    Shapes: float64 (cases, 2).
    """
    tokens, targets = lay_out_answers(cases, budget)
    output = logits(tokens.to(device), budget + 1)
    targets = targets[:, -output.shape[1] :].to(device)
    scores = []
    for row, target in zip(output, targets, strict=True):
        index = target != IGNORE
        of_number = row[index].double()
        answer = target[index]
        log_prob = of_number.log_softmax(-1).gather(-1, answer[:, None]).sum()
        scores.append(torch.stack([(of_number.argmax(-1) == answer).all().double(), log_prob]))
    return torch.stack(scores)


def tabulate(probe: DistanceProbe, scores: Tensor, counts: PositionCounts, threshold: float) -> pd.DataFrame:
    """Write a row for each distance, with exact limits; `attrs` has the retrieval range with its limits."""
    f, g = counts.frequency(), counts.g()
    results, rows = [], []
    for place, distance in enumerate(probe.distances):
        n, passed = scores.shape[2], int(scores[0, place].sum())
        low, high = exact_limits(probe.design, n, passed, probe.config.confidence)
        results.append(LengthResult(distance, n, passed, [], low, high))
        log_prob = float(scores[1, place].mean())
        rows.append((distance, n, passed / n, low, high, log_prob, int(f[distance]), int(g[distance])))
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    table.attrs |= {**reach(results, threshold), "threshold": threshold, "confidence": probe.config.confidence}
    return table


@contextmanager
def as_evaluated(model: nn.Module) -> Iterator[None]:
    """Evaluate a model without gradients and leave each module in the mode in which it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module whose forward names the arguments, below torch.compile and DistributedDataParallel."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def find_logits(output: Any) -> Tensor:
    """Take the logits out of what a forward returns: a tensor, an output of transformers, or the first of a tuple."""
    if isinstance(output, Tensor):
        return output
    return output.logits if hasattr(output, "logits") else output[0]
