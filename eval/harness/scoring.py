"""Requests in batches of one length, and the log-likelihoods of what follows.

Requests that need the same pass share it, as the one-token choices of a question do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lab.model.attention.inspection import BLOCK_LOGITS, last_block
from lab.model.decoder import Decoder

Texts = dict[tuple[int, ...], list[int]]  # each text of a batch with the numbers of its requests


class Generation(NamedTuple):
    """What a task asks of an answer."""

    stops: tuple[str, ...]
    budget: int


class Asked(NamedTuple):
    """A request in tokens: score `targets`, the last len(targets) tokens after `inputs` shifted by one, or generate."""

    inputs: tuple[int, ...]
    cut: bool
    targets: tuple[int, ...] = ()
    generation: Generation | None = None


def batches(asked: Sequence[Asked], rows: Callable[[int], int]) -> Iterator[Texts]:
    """Gather requests of one length and generation, longest first: the texts of a batch, each with its requests.

    Example:
        >>> [list(batch) for batch in batches([Asked(ids, False) for ids in [(1,), (2, 3), (4,), (1,)]], lambda n: 2)]
        [[(2, 3)], [(1,), (4,)]]
    """
    alike: dict[tuple[int, Generation | None], Texts] = {}
    for number, (inputs, _, _, generation) in enumerate(asked):
        alike.setdefault((len(inputs), generation), {}).setdefault(inputs, []).append(number)
    for (length, generation), texts in sorted(alike.items(), key=lambda item: -item[0][0]):
        step, whole = rows(length + (generation.budget if generation else 0)), list(texts.items())
        yield from (dict(whole[start : start + step]) for start in range(0, len(whole), step))


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
