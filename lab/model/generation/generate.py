"""Greedy generation with a key cache, for a batch of prompts of one length; no prompt is padded.

The answer to a prompt does not depend on the other prompts of its batch. Kernels round differently for other numbers of
rows and for a prefix that is read separately, by far less than NEAR rounding errors of the largest logit; if two tokens
are that close, the row is generated again alone, as a batch of one prompt. Half precision has no such check: its
rounding errors are as large as the differences between tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from lab.model.attention import devices
from lab.model.attention.cache import KeyCache
from lab.model.attention.context import ContextGroup
from lab.model.attention.layout import Layout
from lab.model.decoder import Decoder
from lab.model.generation.prefixes import Group, sorted_groups

MaxOverRanks = Callable[[int], int]
Ended = Callable[[Tensor], Tensor]
NEAR = 1024
CACHE_BYTES = 1 << 31  # for the keys and values of rows that are generated together
ACTIVATION_BYTES = 1 << 29  # for one pass over prompts; a longer prompt is read in chunks
CPU_TOKENS = 4096  # more tokens of several rows at a time exceed a CPU's caches
KEPT_FRAC = 0.75  # the cache is compacted when at most this share of its rows is still running


class Stops(NamedTuple):
    """The conditions that end a row early, and how ranks agree that all rows have ended."""

    stop_id: int | None
    ended: Ended | None
    agree: MaxOverRanks | None

    @property
    def filler(self) -> int:
        """Token that fills a row after its end."""
        return 0 if self.stop_id is None else self.stop_id

    @property
    def any(self) -> bool:
        """Whether a row can end early."""
        return self.stop_id is not None or self.ended is not None

    def still_running(self, running: Tensor, answers: Tensor) -> Tensor:
        """Return which running rows continue after their answers so far, whose last token is new.

        Shapes: running bool (B,); answers int64 (B, n); returns bool (B,).
        """
        if self.stop_id is not None:
            running = running & (answers[:, -1] != self.stop_id)
        if self.ended is not None:
            rows = running.nonzero().flatten()
            if len(rows):
                running = running.index_fill(0, rows[self.ended(answers[rows]).to(rows.device)], False)
        return running


@torch.no_grad()
def greedy(
    model: Decoder,
    prompts: Tensor,
    n_tokens: int,
    stop_id: int | None = None,
    *,
    ended: Ended | None = None,
    agree: MaxOverRanks | None = None,
    context: ContextGroup | None = None,
) -> Tensor:
    """Continue every prompt by the most likely token, `n_tokens` times or until every row has ended.

    A row ends with the token `stop_id`, or when `ended` returns true for it. `ended` receives the answers so far
    of rows that have not ended, int64 (rows, n), after every new token but the last possible one, and returns bool
    (rows,). It must decide each row by that row alone: rows come in any order and number, and some come twice. The
    token that ends a row is kept; the caller removes it.

    The common prefix of several prompts is read once. No weights, random states or modes change, so that generating
    during training does not affect it.

    `agree` returns the largest of a number over all ranks, which must run the same forward passes where the model is
    sharded; every rank has the same number of prompts. Their prefixes are not shared. The ranks of a `context` group
    pass the same prompts and get the same answers, each with the keys of its own heads.

    Shapes: prompts int64 (B, T) -> int64 (B, at most n_tokens). After its end a row holds `stop_id`, or 0 without one.
    """
    stops = Stops(stop_id, ended, agree)
    order, groups = None, [Group(0, len(prompts), 0)]
    if agree is None and len(prompts) > 1 and model.new_cache(1, 1).n_maps:
        places, groups = sorted_groups(prompts.cpu().numpy())
        order = torch.tensor(places, device=prompts.device)
        prompts = prompts[order]
    answers = prompts.new_full((len(prompts), n_tokens), stops.filler)
    unsure = torch.zeros(len(prompts), dtype=torch.bool, device=prompts.device)
    width, at_once = 0, rows_at_once(model, prompts.shape[1] + n_tokens, context)
    for start in range(0, len(prompts), at_once):
        rows = slice(start, min(start + at_once, len(prompts)))
        cache = model.new_cache(rows.stop - start, prompts.shape[1] + n_tokens, context)
        logits = prefill(model, prompts[rows], within(groups, rows), cache)
        width = max(width, decode(model, logits, cache, answers[rows], unsure[rows], stops))
    if len(prompts) > 1:
        width = max(width, decode_alone(model, prompts, answers, unsure, stops, context))
    out = answers if order is None else torch.empty_like(answers).index_copy_(0, order, answers)
    return out[:, :width]


def within(groups: list[Group], rows: slice) -> list[Group]:
    """Restrict groups to some rows, numbered from the first of them; a single row shares nothing."""
    own = [(max(a, rows.start) - rows.start, min(b, rows.stop) - rows.start, prefix) for a, b, prefix in groups]
    return [Group(a, b, prefix if b - a > 1 else 0) for a, b, prefix in own if a < b]


def rows_at_once(model: Decoder, n_tokens: int, context: ContextGroup | None) -> int:
    """Count the rows whose keys and values fit into CACHE_BYTES, in the weights' dtype, as theirs is not known yet."""
    n_bytes = model.new_cache(1, n_tokens, context).n_elements * model.embedding.weight.element_size()
    return max(1, CACHE_BYTES // n_bytes)


def prefill(model: Decoder, prompts: Tensor, groups: list[Group], cache: KeyCache) -> Tensor:
    """Fill the cache with the prompts, each group's prefix once, and return the logits that follow, (B, V)."""
    n_tokens, logits = prompts.shape[1], []
    for start, stop, prefix in groups:
        if prefix:
            prefill_rows(model, prompts[start : start + 1, :prefix], cache, start, 0)
            cache.repeat(start, slice(start + 1, stop), prefix)
        step = max(1, tokens_at_once(model, prompts.device) // (n_tokens - prefix))
        for row in range(start, stop, step):
            part = prompts[row : min(row + step, stop), prefix:]
            logits.append(prefill_rows(model, part, cache, row, prefix))
    cache.select(slice(0, len(prompts)), n_tokens)
    return torch.cat(logits)


def prefill_rows(model: Decoder, tokens: Tensor, cache: KeyCache, row: int, past: int) -> Tensor:
    """Continue the cache's rows from `row` on, which hold `past` tokens, and return the last logits."""
    cache.select(slice(row, row + len(tokens)), past)
    step = max(1, ACTIVATION_BYTES // bytes_per_token(model) // len(tokens))
    if not cache.n_maps:
        step = tokens.shape[1]  # hidden states depend on the length of the text
    for begin in range(0, tokens.shape[1], step):
        logits: Tensor = model(tokens[:, begin : begin + step], cache=cache, last_only=True)
    return logits[:, -1]


def tokens_at_once(model: Decoder, device: torch.device) -> int:
    """Count the tokens of one pass over several rows."""
    bound = ACTIVATION_BYTES // bytes_per_token(model)
    return min(bound, CPU_TOKENS) if devices.kind(device) == "cpu" else bound


def bytes_per_token(model: Decoder) -> int:
    """Count a block's bytes per token: residuals, queries, keys, values, the feed-forward layer."""
    cfg = model.cfg
    return (4 * cfg.d_model + 4 * cfg.width + 3 * cfg.d_ff) * model.embedding.weight.element_size()


def decode(model: Decoder, logits: Tensor, cache: KeyCache, answers: Tensor, unsure: Tensor, stops: Stops) -> int:
    """Generate the answers of the cache's rows and mark those that rounding could have changed; return their width.

    Shapes: logits (B, V) after the prompts; answers int64 (B, n_tokens); unsure bool (B,).
    """
    rows = torch.arange(len(answers), device=answers.device)
    running = torch.ones_like(unsure)
    n_tokens = answers.shape[1]
    layouts = step_layouts(model, answers, cache)
    for number in range(n_tokens):
        token = logits.argmax(-1)
        near = is_near(logits) if len(unsure) > 1 else None
        if near is not None:
            unsure[rows] |= near & running
        if stops.any:
            token.masked_fill_(~running, stops.filler)
        answers[rows, number] = token
        if number + 1 == n_tokens:
            break
        if stops.any:
            running = stops.still_running(running, answers[rows, : number + 1])
            n_running = int(running.sum())
            if not (n_running if stops.agree is None else stops.agree(n_running)):
                break
            if n_running <= KEPT_FRAC * len(rows) and len(rows) > 1:
                # without a running row one is kept, for the forward passes that other ranks still run
                kept = running.nonzero().flatten() if n_running else rows[:1] * 0
                cache.compact(kept)
                rows, running, token = rows[kept], running[kept], token[kept]
        logits = model(token[:, None], cache=cache, layout=next(layouts), last_only=True)[:, -1]
    return number + 1


def step_layouts(model: Decoder, answers: Tensor, cache: KeyCache) -> Iterator[Layout | None]:
    """Prepare the layouts of all steps; None where each forward pass must rotate all keys."""
    if not cache.n_maps or answers.shape[1] == 1:
        return repeat(None)
    return model.layout(answers[:1, 1:], None, None, None, cache).steps()


def is_near(logits: Tensor) -> Tensor | None:
    """Return which rows have two tokens within NEAR rounding errors of the largest logit; None in half precision."""
    if logits.element_size() < 4:
        return None
    low, high = logits.aminmax(dim=-1, keepdim=True)
    margin = torch.maximum(-low, high) * (NEAR * torch.finfo(logits.dtype).eps)
    return (logits >= high - margin).sum(-1) > 1


def decode_alone(
    model: Decoder, prompts: Tensor, answers: Tensor, unsure: Tensor, stops: Stops, context: ContextGroup | None
) -> int:
    """Generate every unsure row again, as a batch of one prompt; return the width of their answers."""
    numbers = unsure.nonzero().flatten().tolist()
    n_alone = len(numbers) if stops.agree is None else stops.agree(len(numbers))
    width = 0
    for row in numbers + [None] * (n_alone - len(numbers)):  # None: run with the other ranks, drop the result
        own = slice(row or 0, (row or 0) + 1)
        n_tokens, (stop_id, ended, agree) = answers.shape[1], stops
        answer = greedy(model, prompts[own], n_tokens, stop_id, ended=ended, agree=agree, context=context)
        width = max(width, answer.shape[1])
        if row is not None:
            answers[row] = stops.filler
            answers[row, : answer.shape[1]] = answer[0]
    return width
