"""Log-likelihoods of continuations and of texts, as a harness asks for them.

A continuation y_1 .. y_m after a context x_1 .. x_n scores

    sum_i ln p(y_i | x_1 .. x_n y_1 .. y_(i-1)),    greedy where every y_i is the most likely token

and a text is a continuation of the token that begins a document. eval/harness/encoding.py says how both become tokens.

Requests of one length run side by side, without padding, longest first; continuations of one context that ask the
decoder for the same pass share it, as the one-token choices of a question do.

Source: lm-evaluation-harness 0.4.13, docs/model_guide.md, for the meaning of the requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from eval.harness.encoding import Encoder, Scored
from lab.model.attention.inspection import BLOCK_LOGITS, last_block
from lab.model.decoder import Decoder


class Outcome(NamedTuple):
    """What a request came to.

    `value` is a continuation's (log-likelihood, greedy), a text's log-likelihood, or an answer; `tokens` the length of
    the longest text that was read for it, and `cut` tells whether its context lost its beginning. Requests that ran
    side by side share their seconds.
    """

    value: Any
    tokens: int
    cut: bool
    seconds: float


Outcomes = Mapping[int, Outcome]  # by the request's number


class Runs(Protocol):
    """Chooses how many rows of a length run side by side."""

    def __call__(self, length: int) -> int:
        """Count the rows."""
        ...


@dataclass(frozen=True)
class Scorer:
    """A decoder that scores what follows what."""

    decoder: Decoder
    encoder: Encoder
    computing: Callable[[], AbstractContextManager[Any]]
    rows: Runs
    device: torch.device

    def continuations(self, pairs: Sequence[tuple[str, str]]) -> Iterator[Outcomes]:
        """Score contexts and continuations, and give out each batch's as soon as they are known.

        Raises: ConfigError for a continuation that is longer than the window, DataError for one without tokens.
        """
        encoded = [self.encoder.scored(*pair) for pair in pairs]
        for batch in self.passes([request for request, _ in encoded]):
            yield {number: outcome._replace(cut=encoded[number][1]) for number, outcome in batch.items()}

    def texts(self, texts: Sequence[str]) -> Iterator[Outcomes]:
        """Score whole texts, each on its own, and give out those of which all pieces are known."""
        pieces = [(number, piece) for number, text in enumerate(texts) for piece in self.encoder.pieces(text)]
        missing = [0] * len(texts)
        for number, _ in pieces:
            missing[number] += 1
        sums = [Outcome(0.0, 0, False, 0.0)] * len(texts)
        yield {number: sums[number] for number, count in enumerate(missing) if not count}
        for batch in self.passes([piece for _, piece in pieces]):
            whole = {}
            for place, ((nats, _), tokens, _, seconds) in batch.items():
                number, so_far = pieces[place][0], sums[pieces[place][0]]
                sums[number] = Outcome(so_far.value + nats, tokens, False, so_far.seconds + seconds)  # all equally long
                missing[number] -= 1
                if not missing[number]:
                    whole[number] = sums[number]
            yield whole

    def passes(self, requests: Sequence[Scored]) -> Iterator[Outcomes]:
        """Run the passes that requests need, each once."""
        asking: dict[tuple[int, ...], list[int]] = {}
        for number, request in enumerate(requests):
            asking.setdefault(request.inputs, []).append(number)
        for batch in by_length(list(asking), self.rows):
            started = time.perf_counter()
            rows = [(row, requests[number].targets) for row, inputs in enumerate(batch) for number in asking[inputs]]
            with self.computing():
                values = token_scores(self.decoder, torch.tensor(batch, device=self.device), rows)
            seconds = (time.perf_counter() - started) / len(rows)
            numbers = (number for inputs in batch for number in asking[inputs])
            length = len(batch[0])
            yield {n: Outcome(value, length, False, seconds) for n, value in zip(numbers, values, strict=True)}


def by_length(texts: Sequence[tuple[int, ...]], rows: Runs) -> Iterator[list[tuple[int, ...]]]:
    """Gather texts of one length, longest first.

    Example:
        >>> list(by_length([(1,), (2, 3), (4,), (5,)], lambda length: 2))
        [[(2, 3)], [(1,), (4,)], [(5,)]]
    """
    lengths: dict[int, list[tuple[int, ...]]] = {}
    for text in texts:
        lengths.setdefault(len(text), []).append(text)
    for length, alike in sorted(lengths.items(), reverse=True):
        step = rows(length)
        yield from (alike[start : start + step] for start in range(0, len(alike), step))


@torch.no_grad()
def token_scores(
    decoder: Decoder, tokens: Tensor, asked: Sequence[tuple[int, tuple[int, ...]]]
) -> list[tuple[float, bool]]:
    """Score what is asked of rows: the ids that follow a row's last tokens, the last of them after its end.

    Shapes: tokens int64 (B, T); asked: (row, ids) each -> the sum of ln p, and whether all ids are the most likely.
    """
    n_tokens = tokens.shape[1]
    rows = torch.tensor([row for row, ids in asked for _ in ids], device=tokens.device)
    places = torch.tensor([n_tokens - len(ids) + k for _, ids in asked for k in range(len(ids))], device=tokens.device)
    wanted = torch.tensor([token for _, ids in asked for token in ids], device=tokens.device)
    hidden = last_block(decoder, tokens)
    nats = torch.zeros(len(wanted), dtype=torch.float64, device=tokens.device)
    likeliest = torch.zeros(len(wanted), dtype=torch.bool, device=tokens.device)
    step = max(1, BLOCK_LOGITS // decoder.cfg.vocab_size)  # of the head at a time
    for start in range(0, len(wanted), step):
        part = slice(start, start + step)
        logits = decoder.head(decoder.norm(hidden[rows[part], places[part]])).double()
        nats[part] = logits.gather(1, wanted[part, None])[:, 0] - logits.logsumexp(-1)
        likeliest[part] = logits.argmax(-1) == wanted[part]
    sizes = [len(ids) for _, ids in asked]
    each = zip(torch.split(nats.cpu(), sizes), torch.split(likeliest.cpu(), sizes), strict=True)
    return [(float(values.sum()), bool(flags.all())) for values, flags in each]
