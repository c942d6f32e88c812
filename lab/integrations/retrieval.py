"""The one-number tests of `probe-lab distance` for any causal model, scored by teacher forcing.

A test hides a number d tokens before the end of the prompt (lab/probe/effective_distance.py). The right answer follows
the prompt in one forward. The number is retrieved if each of its tokens has the largest logit after the right ones:

    retrieved = for all tokens j of the number:  argmax_v logits[n_prompt + j - 1, v] = answer[j]
    log_prob  = sum over j of log softmax(logits[n_prompt + j - 1])[answer[j]]

Greedy decoding answers with the same number, as each of its tokens then is the one decoded. No `generate` is needed.
Several ranks divide the tests.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from tokenizers import Tokenizer
from torch import Tensor, distributed, nn
from torch.nn.functional import cross_entropy

from lab.core.errors import ConfigError, DataError, first_line
from lab.core.launch import sum_over_ranks
from lab.core.schema import Length, Section, Seed, Share, Tests
from lab.core.types import CONFIDENCE, IGNORE, FloatArray
from lab.data.config import Synthetic
from lab.data.encoding import switch_off_extras
from lab.integrations.tokenizer_adapter import TextTokenizer, TokenizerAdapter
from lab.probe.config import ProbeConfig
from lab.probe.effective_distance import QUESTION, TOKENS_AT_ONCE, DistanceProbe, NoRoom, OneNumberCase, lay_out_answers
from lab.probe.limits import LengthResult, share_limits
from lab.probe.needles import write_filler
from lab.probe.reach import reach

Logits = Callable[[Tensor, int], Tensor]
"""int64 (B, T) and n, of which the last n tokens' logits are needed -> (B, n or T, vocabulary)."""
COLUMNS = ["distance", "n", "score", "low", "high", "log_prob"]


class Test(NamedTuple):
    """The result of a test: `score` is 1 if its number is retrieved, else 0, `log_prob` the number's in nats."""

    distance: int
    score: float
    log_prob: float


class ProbeArguments(Section):
    """The arguments of a probe."""

    window: Length
    """Tokens of a test with its answer; in the harness --metadata='{"window": 2048}'."""
    tests: Tests
    """Tests at each distance."""
    distances: tuple[Length, ...] | None = None
    """Distances to test, in tokens, rising. Default: 14."""
    threshold: Share
    """Share of tests that reach asks for."""
    seed: Seed
    """Seed of the tests."""


def read_tokenizer(tokenizer: TextTokenizer | None) -> Tokenizer:
    """Return a copy of a tokenizer of `tokenizers`, or of the one below transformers' fast tokenizer; adapt others.

    Raises: ConfigError, DataError for a tokenizer that prompts cannot be written with.
    """
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)  # transformers' own name
    if not isinstance(inner, Tokenizer):
        return cast("Tokenizer", TokenizerAdapter(cast("TextTokenizer", tokenizer)))
    copy = Tokenizer.from_str(inner.to_str())
    # <eos> in a haystack is text, as in the lab's own commands.
    copy.encode_special_tokens = True
    switch_off_extras(copy)
    return copy


def build_tests(
    tokenizer: TextTokenizer | None,
    window: int,
    tests: int,
    distances: Iterable[int] | None,
    seed: int,
    threshold: float = 0.8,
    *,
    haystack: str | None,
    question: str = QUESTION,
) -> DistanceProbe:
    """Build the tests of a window of tokens; without a haystack the filler is the lab's generated text.

    Raises: ConfigError, DataError.
    """
    arguments = ProbeArguments(
        window=window,
        tests=tests,
        distances=tuple(distances) if isinstance(distances, Iterable) else distances,  # a range and an array too
        threshold=threshold,
        seed=seed,
    )
    if arguments.distances == ():
        raise ConfigError("distances=[]: must have one; omit it for 14")
    config = ProbeConfig(distance_tests=arguments.tests, seed=arguments.seed, distances=arguments.distances)
    # Errors name the haystack by the caller's argument.
    source: str | None = "haystack"
    if haystack is None:
        haystack, source = write_filler(Synthetic()), None
    own = read_tokenizer(tokenizer)
    try:
        return DistanceProbe(config, own, haystack, window=window, stop_id=None, source=source, question=question)
    except ConfigError as error:
        # The line names settings of a run and fixes by them.
        field, _, rule = first_line(error).partition("; ")[0].partition(": ")
        field = f"window={window}" if isinstance(error, NoRoom) else field.removeprefix("probe.")
        raise ConfigError(f"{field}: {rule}; use a longer window or other distances") from error


def ranks() -> tuple[int, int]:
    """Return the rank of this process and how many there are."""
    if distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def run_tests(probe: DistanceProbe, logits: Logits) -> list[Test]:
    """Run all tests, divided among the ranks; a collective call."""
    tests = list(product(probe.distances, range(probe.tests)))
    scores = np.zeros((len(tests), 2))
    rank, n_ranks = ranks()
    at_once = max(1, TOKENS_AT_ONCE // probe.window)
    # Every rank runs the same number of forwards, as FSDP gathers weights in each. A rank without tests repeats one.
    for start in range(0, -(-len(tests) // n_ranks), at_once):
        chosen = range(rank, len(tests), n_ranks)[start : start + at_once]
        cases = [probe.case(*tests[index]) for index in chosen or (0,)]
        scores[list(chosen)] = score_answers(logits, cases, probe.budget)[: len(chosen)]
    return [Test(distance, *row) for (distance, _), row in zip(tests, sum_over_ranks(scores).tolist(), strict=True)]


def score_answers(logits: Logits, cases: Sequence[OneNumberCase], budget: int) -> FloatArray:
    """Score the right answer of each test: whether its number is retrieved, and its log-probability in nats.

    Shapes: float64 (cases, 2).
    """
    tokens, targets = lay_out_answers(cases, budget)
    output = logits(tokens, budget + 1)
    scores = []
    # Models that keep only the last logits return fewer than there are tokens.
    for row, target in zip(output, targets[:, -output.shape[1] :], strict=True):
        index = target != IGNORE
        of_number, number = row[index.to(row.device)].detach().cpu().double(), target[index]
        scores.append([(of_number.argmax(-1) == number).all(), -cross_entropy(of_number, number, reduction="sum")])
    return np.array(scores, dtype=np.float64)


def tabulate_tests(tests: Iterable[Test], threshold: float = 0.8) -> pd.DataFrame:
    """Write a row for each distance, with exact limits; `attrs` has the retrieval range with its limits."""
    results: list[LengthResult] = []
    rows = []
    for distance, group in pd.DataFrame(tests, columns=Test._fields).groupby("distance"):
        n, passed = len(group), int(group["score"].sum())
        limits = share_limits(passed, n, CONFIDENCE)
        results.append(LengthResult(int(distance), n, passed, [], *limits))
        rows.append((distance, n, passed / n, *limits, group["log_prob"].mean()))
    table = pd.DataFrame(rows, columns=COLUMNS)
    table.attrs |= {**reach(results, threshold), "threshold": threshold, "confidence": CONFIDENCE}
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
    """Return the module whose forward names the arguments, below torch.compile, DataParallel and the like."""
    inner = getattr(model, "_orig_mod", None)
    parameters = inspect.signature(model.forward).parameters.values()
    if inner is None and all(parameter.kind.name.startswith("VAR") for parameter in parameters):
        inner = getattr(model, "module", None)
    return model if inner is None else unwrap(inner)


def find_logits(output: object) -> Tensor:
    """Take the logits out of what a forward returns: a tensor, the first of a tuple, or what has that name.

    Raises: DataError for anything else.
    """
    if isinstance(output, Mapping):  # outputs of transformers too
        output = output.get("logits")
    elif isinstance(output, tuple):
        output = output[0]
    else:
        output = getattr(output, "logits", output)
    if not isinstance(output, Tensor) or output.dim() != 3:
        raise DataError(
            f"logits: are not in the {type(output).__name__} that the forward returns; name them by logits="
        )
    return output
