"""Requests in tokens, their batches of one length, and log-likelihoods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lab.model.attention.inspection import BLOCK_LOGITS, last_block
from lab.model.decoder import Decoder


class TokenRequest(NamedTuple):
    """A request in tokens: score `targets`, the last len(targets) tokens after `inputs` shifted by one.

    With a `budget`, it asks for an answer of so many tokens, which ends at one of `stops`.
    """

    inputs: tuple[int, ...]
    cut: bool
    targets: tuple[int, ...] = ()
    budget: int = 0
    stops: tuple[str, ...] = ()


def batches(asked: Sequence[TokenRequest], rows: Callable[[int], int]) -> Iterator[dict[tuple[int, ...], list[int]]]:
    """Gather requests of one length, budget and stops, longest first: the texts of a batch, each with its requests.

    Requests that need the same pass share it, as the one-token choices of a question do.

    Example:
        >>> asked = [TokenRequest(ids, False) for ids in [(1,), (2, 3), (4,), (1,)]]
        >>> [list(batch) for batch in batches(asked, lambda n: 2)]
        [[(2, 3)], [(1,), (4,)]]
    """
    alike: dict[tuple[int, int, tuple[str, ...]], dict[tuple[int, ...], list[int]]] = {}
    for number, (inputs, _, _, budget, stops) in enumerate(asked):
        alike.setdefault((len(inputs), budget, stops), {}).setdefault(inputs, []).append(number)
    for (length, budget, _), texts in sorted(alike.items(), key=lambda item: -item[0][0]):
        step, whole = rows(length + budget), list(texts.items())
        yield from (dict(whole[start : start + step]) for start in range(0, len(whole), step))


@torch.no_grad()
def token_scores(
    decoder: Decoder, tokens: Tensor, asked: Sequence[tuple[int, tuple[int, ...]]]
) -> list[tuple[float, bool]]:
    """Score the ids that follow a row's last tokens, the last of them after its end.

    Shapes: tokens int64 (B, T); asked: (row, ids) each -> the sum of ln p, and whether all ids are the most likely.
    """
    end = tokens.shape[1]
    wanted = [(row, end - len(ids) + k, token) for row, ids in asked for k, token in enumerate(ids)]
    hidden, found = last_block(decoder, tokens), []
    step = max(1, BLOCK_LOGITS // decoder.cfg.vocab_size)  # tokens that the head scores at a time
    for rows, places, ids in (part.unbind(1) for part in torch.tensor(wanted, device=tokens.device).split(step)):
        logits = decoder.head(decoder.norm(hidden[rows, places])).double()
        nats = logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(-1)
        found.append(torch.stack([nats, logits.argmax(-1) == ids], 1).cpu())
    each = torch.cat(found).split([len(ids) for _, ids in asked])
    return [(float(scores[:, 0].sum()), bool(scores[:, 1].all())) for scores in each]
