"""Greedy generation with a key cache, for a batch of prompts of one length; no prompt is padded.

The answer to a prompt does not depend on the other prompts of its batch. Kernels round differently for other numbers of
rows and for a prefix that is read separately. The difference is far less than NEAR rounding errors of the largest
logit. If two tokens are that close, the row is generated again alone, as a batch of one prompt. Half precision has no
such check: its rounding errors are as large as the differences between tokens.

Prompts are sorted, and the common prefix of neighbours is read once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lab.model import devices
from lab.model.attention.cache import KeyCache
from lab.model.attention.context import ContextGroup
from lab.model.decoder import Decoder

Ended = Callable[[Tensor, Tensor], Tensor]
GoOn = Callable[[Tensor, Tensor, Tensor], Tensor]
NEAR = 256  # ten times the largest difference measured (docs/evaluation.md)
CACHE_BYTES = 1 << 31  # for the keys and values of rows that are generated together on a CPU, or by a group
FREE_FRAC = 0.5  # of a GPU's free memory, for the same; the rest is left to activations and fragments
ACTIVATION_BYTES = 1 << 29  # for one pass over prompts; a longer prompt is read in chunks
CPU_TOKENS = 4096  # more tokens of several rows at a time exceed a CPU's caches
LEAST_SHARE = 0.25  # of a prompt that must be shared: reading a shorter prefix separately costs more than it saves
KEPT_FRAC = 0.75  # the cache is compacted when at most this share of its rows is still running


@torch.no_grad()
def greedy(
    model: Decoder,
    prompts: Tensor,
    n_tokens: int,
    stop_id: int | None = None,
    *,
    ended: Ended | None = None,
    context: ContextGroup | None = None,
) -> Tensor:
    """Continue every prompt by the most likely token, `n_tokens` times or until every row has ended.

    A row ends with the token `stop_id`, or when `ended` returns true for it. `ended` receives the answers so far
    of rows that have not ended, int64 (rows, n), and the numbers of their prompts, int64 (rows,), after every new token
    but the last possible one, and returns bool (rows,). It must decide each row by that row alone: rows come in any
    order and number, and some come twice. The token that ends a row is kept; the caller removes it.

    The common prefix of several prompts is read once. No weights, random states or modes change, so that generating
    during training does not affect it.

    The ranks of a `context` group pass the same prompts and get the same answers, each with the keys of its own heads.

    Shapes: prompts int64 (B, T) -> int64 (B, at most n_tokens). After its end a row holds `stop_id`, or 0 without one.
    """
    texts = [row.tobytes() for row in prompts.cpu().numpy()]
    order = torch.tensor(sorted(range(len(texts)), key=texts.__getitem__), device=prompts.device)
    prompts = prompts[order]
    answers = prompts.new_full((len(prompts), n_tokens), stop_id or 0)
    unsure = torch.zeros(len(prompts), dtype=torch.bool, device=prompts.device)
    width = 0
    at_once = rows_at_once(model, len(prompts), prompts.shape[1] + n_tokens, context)
    for start in range(0, len(prompts), at_once):
        rows = slice(start, min(start + at_once, len(prompts)))
        cache = model.new_cache(rows.stop - start, prompts.shape[1] + n_tokens, context)
        alike = len(prompts) > 1 and cache.n_maps > 0
        groups = groups_of(prompts[rows].cpu().numpy()) if alike else [Group(0, rows.stop - start, 0)]
        logits = prefill(model, prompts[rows], groups, cache)
        go_on = partial(still_running, stop_id=stop_id, ended=ended, numbers=order[rows])
        width = max(width, decode(model, logits, cache, answers[rows], unsure[rows], go_on))
    for row in unsure.nonzero().flatten().tolist():  # again, as a batch of one prompt
        number = order[row : row + 1]
        alone = ended and partial(ended_alone, ended, number)
        answer = greedy(model, prompts[row : row + 1], n_tokens, stop_id, ended=alone, context=context)
        width = max(width, answer.shape[1])
        answers[row] = stop_id or 0
        answers[row, : answer.shape[1]] = answer[0]
    return torch.empty_like(answers).index_copy_(0, order, answers)[:, :width]


def ended_alone(ended: Ended, number: Tensor, answers: Tensor, _: Tensor) -> Tensor:
    """Ask the rule for a batch of one row by the number of its prompt."""
    return ended(answers, number)


def still_running(
    running: Tensor, rows: Tensor, answers: Tensor, *, stop_id: int | None, ended: Ended | None, numbers: Tensor
) -> Tensor:
    """Return which running rows continue after their answers so far, whose last token is new.

    Shapes: running bool (R,); rows int64 (R,); answers int64 (R, n); numbers of the prompts int64 (B,); returns (R,).
    """
    if stop_id is not None:
        running = running & (answers[:, -1] != stop_id)
    asked = running.nonzero().flatten()
    if ended is not None and len(asked):
        over = ended(answers[asked], numbers[rows[asked]]).to(asked.device)
        running = running.index_fill(0, asked[over], False)
    return running


def rows_at_once(model: Decoder, n_rows: int, n_tokens: int, context: ContextGroup | None) -> int:
    """Count the rows whose keys and values fit, in the weights' dtype, as theirs is not known yet.

    On a GPU the memory that is free decides, and parts have like numbers of rows, as every part has the same steps; the
    ranks of a group, whose free memory may differ, take CACHE_BYTES as on a CPU.
    """
    weight = model.embedding.weight
    n_bytes = model.new_cache(1, n_tokens, context).n_elements * weight.element_size()
    if devices.kind(weight.device) == "cpu" or context is not None:
        return max(1, CACHE_BYTES // n_bytes)
    unused = torch.cuda.memory_reserved(weight.device) - torch.cuda.memory_allocated(weight.device)
    free = torch.cuda.mem_get_info(weight.device)[0] + unused
    n_parts = math.ceil(n_rows / max(1, int(FREE_FRAC * free) // n_bytes))
    return math.ceil(n_rows / n_parts)


def prefill(model: Decoder, prompts: Tensor, groups: list[Group], cache: KeyCache) -> Tensor:
    """Fill the cache with the prompts, each group's prefix once, and return the logits that follow, (B, V)."""
    n_tokens, logits = prompts.shape[1], []
    at_once = ACTIVATION_BYTES // bytes_per_token(model)  # tokens of one pass over several rows
    if devices.kind(prompts.device) == "cpu":
        at_once = min(at_once, CPU_TOKENS)
    for start, stop, prefix in groups:
        if prefix:
            prefill_rows(model, prompts[start : start + 1, :prefix], cache, start, 0)
            cache.repeat(start, slice(start + 1, stop), prefix)
        step = max(1, at_once // (n_tokens - prefix))
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


def bytes_per_token(model: Decoder) -> int:
    """Count a block's bytes per token: residuals, queries, keys, values, the feed-forward layer."""
    cfg = model.cfg
    return (4 * cfg.d_model + 4 * cfg.width + 3 * cfg.d_ff) * model.embedding.weight.element_size()


def decode(model: Decoder, logits: Tensor, cache: KeyCache, answers: Tensor, unsure: Tensor, go_on: GoOn) -> int:
    """Generate the answers of the cache's rows and mark those that rounding could have changed; return their width.

    Shapes: logits (B, V) after the prompts; answers int64 (B, n_tokens), filled up; unsure bool (B,).
    """
    rows = torch.arange(len(answers), device=answers.device)
    running = torch.ones_like(unsure)
    n_tokens = answers.shape[1]
    for number in range(n_tokens):
        token = torch.where(running, logits.argmax(-1), answers[rows, number])
        near = is_near(logits) if len(unsure) > 1 else None
        if near is not None:
            unsure[rows] |= near & running
        answers[rows, number] = token
        if number + 1 == n_tokens:
            break
        running = go_on(running, rows, answers[rows, : number + 1])
        n_running = int(running.sum())
        if not n_running:
            break
        if n_running <= KEPT_FRAC * len(rows):
            kept = running.nonzero().flatten()
            cache.compact(kept)
            rows = rows[kept]
            running = running[kept]
            token = token[kept]
        logits = model(token[:, None], cache=cache, last_only=True)[:, -1]
    return number + 1


def is_near(logits: Tensor) -> Tensor | None:
    """Return which rows have two tokens within NEAR rounding errors of the largest logit; None in half precision."""
    if logits.element_size() < 4:
        return None
    low, high = logits.aminmax(dim=-1, keepdim=True)
    margin = torch.maximum(-low, high) * (NEAR * torch.finfo(logits.dtype).eps)
    return (logits >= high - margin).sum(-1) > 1


class Group(NamedTuple):
    """Rows `start` to `stop` of sorted prompts, the first `prefix` tokens of which are the same; 0 for none shared."""

    start: int
    stop: int
    prefix: int


def groups_of(prompts: np.ndarray) -> list[Group]:
    """Divide sorted prompts into groups with a common prefix, which cover all rows in order.

    A row joins the group before it as long as the group then saves no fewer tokens. The last token of a prompt is
    never part of its prefix: its logits choose the first new token. Rows that share nothing become one group of
    prefix 0.

    Shapes: prompts integers (B, T).
    Example:
        >>> groups_of(np.array([[1, 1, 1, 1], [7, 8, 1, 1], [7, 8, 2, 2]]))
        [Group(start=0, stop=1, prefix=0), Group(start=1, stop=3, prefix=2)]
    """
    n_tokens = prompts.shape[1]
    groups = [Group(0, 1, n_tokens - 1)]
    for row, pair in enumerate(itertools.pairwise(prompts), start=1):
        last = groups[-1]
        prefix = min(last.prefix, n_common(*pair))
        saved = prefix * (row - last.start)
        if prefix >= LEAST_SHARE * n_tokens and saved >= last.prefix * (row - 1 - last.start):
            groups[-1] = Group(last.start, row + 1, prefix)
        else:
            groups.append(Group(row, row + 1, n_tokens - 1))
    return joined([Group(a, b, prefix if b - a > 1 else 0) for a, b, prefix in groups])


def joined(groups: list[Group]) -> list[Group]:
    """Join adjacent groups that share nothing."""
    out: list[Group] = []
    for group in groups:
        if out and out[-1].prefix == group.prefix == 0:
            out[-1] = Group(out[-1].start, group.stop, 0)
        else:
            out.append(group)
    return out


def n_common(a: np.ndarray, b: np.ndarray) -> int:
    """Count the tokens of the common prefix of two prompts, at most all but the last."""
    differ = a[:-1] != b[:-1]
    return int(differ.argmax()) if differ.any() else len(differ)
