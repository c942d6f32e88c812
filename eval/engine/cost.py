"""What tests cost, said before they run: how many, their tokens, and the minutes that follow from a timed pass.

The cost of n tokens is that of one forward pass over them, in proportion to its operations. A pass over at most TIMED
tokens is timed. Tests that any machine runs within a minute are not timed.
"""

import time
from collections.abc import Sequence

import torch

from eval.engine.subject import Subject
from lab import command, errors
from lab.model.config import DecoderConfig

TIMED = 512  # tokens of a pass that is timed
SLOWEST = 1e9  # operations a second of any machine
SHORT_S = 60.0


def announce(subject: Subject, kind: str, unit: str, tests: Sequence[tuple[int, int]]) -> None:
    """Name the cost of tests, numbers of them and the tokens of each, where it is more than a minute.

    Raises: ConfigError for tests that are longer than the model's table of positions.
    """
    cfg, most = subject.model.decoder.cfg, subject.most_tokens
    longest = max((tokens for _, tokens in tests), default=0)
    if most is not None and longest > most:
        rule = f"must be <= {most:,}, the positions that {subject.model.name} has"
        raise errors.ConfigError(f"--lengths={longest}: {rule}; name shorter ones, or another model")
    operations = sum(n * operations_of(cfg, tokens) for n, tokens in tests)
    if operations < SHORT_S * SLOWEST:
        return
    timed = min(TIMED, longest)
    seconds = seconds_of(subject, timed) * operations / operations_of(cfg, timed)
    if seconds > SHORT_S:
        n, total = sum(n for n, _ in tests), sum(n * tokens for n, tokens in tests)
        command.show(f"{kind}: {n:,} {unit}s, {total:,} tokens: about {seconds / 60:,.0f} minutes at most", error=True)


def operations_of(cfg: DecoderConfig, tokens: int) -> float:
    """Count the operations of a forward pass, a third of those of a step."""
    return tokens * cfg.flops_per_token(tokens / 2) / 3


def seconds_of(subject: Subject, tokens: int) -> float:
    """Time a pass over a text of so many tokens, the second of two, as the first one compiles and allocates."""
    text = torch.zeros(1, tokens, dtype=torch.int64)
    for _ in range(2):
        start = time.perf_counter()
        subject.losses(text, text)[0, -1].item()
    return time.perf_counter() - start
