"""Greedy generation with a key cache, for a batch of prompts of one length; no prompt is padded.

The answer to a prompt does not depend on the other prompts of its batch. Kernels round differently for other numbers of
rows. The difference is far less than TIE_MARGIN rounding errors of the largest logit. If two tokens are that close, the
row is generated again alone, as a batch of one prompt. Half precision has no such check: its rounding errors are as
large as the differences between tokens.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lab.model import devices
from lab.model.attention.inspection import check_finite
from lab.model.attention.layout import KeyCache
from lab.model.huggingface.foreign import AnyDecoder, Foreign, ForeignCache

Ended = Callable[[Tensor, Tensor], Tensor]
TIE_MARGIN = 256  # rounding errors, ten times the largest difference measured (docs/evaluation_details.md)
CACHE_BYTES = 1 << 31  # for the keys and values of rows that are generated together on a CPU
ACTIVATION_BYTES = 1 << 29  # for one pass over prompts; a longer prompt is read in chunks


@torch.no_grad()
def greedy(
    model: AnyDecoder,
    prompts: Tensor,
    n_tokens: int,
    stop_id: int | None = None,
    *,
    ended: Ended | None = None,
) -> Tensor:
    """Continue every prompt by the most likely token, `n_tokens` times or until every row has ended.

    A row ends with the token `stop_id`, or when `ended` returns true for it. `ended` receives the answers so far
    of rows that have not ended, int64 (rows, n), and the numbers of their prompts, int64 (rows,), after every new token
    but the last possible one, and returns bool (rows,). It must decide each row by that row alone: rows come in any
    order and number, and some come a second time. An answer includes the token that ends it; the caller removes it.

    No weights, random states or modes change, so that generating during training does not affect it.

    Shapes: prompts int64 (B, T) -> int64 (B, at most n_tokens). After its end a row is padded by `stop_id`, or by 0.
    """
    answers = prompts.new_full((len(prompts), n_tokens), stop_id or 0)
    unsure = torch.zeros(len(prompts), dtype=torch.bool, device=prompts.device)
    answer = partial(decode, model, prompts, answers, unsure, stop_id, ended)
    numbers = torch.arange(len(prompts), device=prompts.device)
    batch = count_fitting_rows(model, len(prompts), prompts.shape[1] + n_tokens)
    widths = [answer(numbers[start : start + batch]) for start in range(0, len(prompts), batch)]
    for row in unsure.nonzero():  # again, as a batch of one prompt
        answers[row] = stop_id or 0
        widths.append(answer(row))
    return answers[:, : max(widths, default=0)]


def count_fitting_rows(model: AnyDecoder, n_rows: int, n_tokens: int) -> int:
    """Count the rows whose keys and values fit in memory together."""
    weight = model.embedding.weight
    # The dtype of the cache is not known before the first pass: that of the weights is taken.
    n_bytes = model.new_cache(1, n_tokens).n_elements * weight.element_size()
    if devices.device_type(weight.device) == "cpu":
        return max(1, CACHE_BYTES // n_bytes)
    # What torch has reserved and does not use is free for the cache too, though the driver does not report it as free.
    unused = torch.cuda.memory_reserved(weight.device) - torch.cuda.memory_allocated(weight.device)
    # Half of the free memory is left to activations and fragments.
    free = torch.cuda.mem_get_info(weight.device)[0] + unused
    # A batch takes the same number of steps for any number of rows: equal batches leave no small one at the end.
    return math.ceil(n_rows / math.ceil(n_rows / max(1, free // 2 // n_bytes)))


def prefill(model: AnyDecoder, prompts: Tensor, cache: KeyCache | ForeignCache) -> Tensor:
    """Fill the cache with the prompts, some rows and tokens at a time, and return the logits that follow, (B, V)."""
    n_rows, n_tokens = prompts.shape
    most_tokens = ACTIVATION_BYTES // bytes_per_token(model)
    step = n_rows  # a cache of transformers has all rows from the start
    if isinstance(cache, KeyCache):
        at_once = most_tokens
        if devices.device_type(prompts.device) == "cpu":
            at_once = min(at_once, 4096)  # more tokens of several rows exceed a CPU's caches
        step = max(1, at_once // n_tokens)
    logits = []
    for row in range(0, n_rows, step):
        tokens = prompts[row : row + step]
        cache.select(slice(row, row + len(tokens)), 0)
        width = n_tokens
        if cache.n_maps:  # otherwise hidden states depend on the length of the text, which is then read in one pass
            width = max(1, most_tokens // len(tokens))
        for part in tokens.split(width, dim=1):
            following: Tensor = model(part, cache=cache, last_only=True)
        logits.append(following[:, -1])
    cache.select(slice(0, n_rows), n_tokens)
    return torch.cat(logits)


def bytes_per_token(model: AnyDecoder) -> int:
    """Count a block's bytes per token: residuals, queries, keys, values, the feed-forward layer."""
    cfg = model.cfg
    return (4 * cfg.d_model + 4 * cfg.width + 3 * cfg.d_ff) * model.embedding.weight.element_size()


def longrope_switch(model: AnyDecoder) -> int | None:
    """Return the length beyond which LongRoPE has other factors for all tokens; None for other methods."""
    if isinstance(model, Foreign) and model.frequencies.method == "own":
        rope = getattr(model.model.config.get_text_config(), "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":
            return int(rope["original_max_position_embeddings"])
    return None


def decode(
    model: AnyDecoder,
    prompts: Tensor,
    answers: Tensor,
    unsure: Tensor,
    stop_id: int | None,
    ended: Ended | None,
    rows: Tensor,
) -> int:
    """Answer the prompts `rows` in one batch, mark those that rounding could have changed; return the answers' width.

    Shapes: prompts int64 (B, T); answers int64 (B, n_tokens), padded; unsure bool (B,); rows int64 (n,).
    """
    switch = longrope_switch(model)
    running = torch.ones_like(rows, dtype=torch.bool)  # by row of the cache, as `rows`
    is_batch = len(rows) > 1
    length, n_tokens = prompts.shape[1], answers.shape[1]
    for number in range(n_tokens):
        # Beyond LongRoPE's short length the keys and values of all tokens change: the text is read again.
        if number == 0 or length + number - 1 == switch:
            cache = model.new_cache(len(rows), length + n_tokens)
            logits = prefill(model, torch.cat([prompts[rows], answers[rows, :number]], dim=1), cache)
        else:
            logits = model(answers[rows, number - 1 : number], cache=cache, last_only=True)[:, -1]
        check_finite(logits.amax(-1), "logits")  # the largest is NaN if any is
        # Answers are padded with the stop token, which rows that have ended keep.
        token = torch.where(running, logits.argmax(-1), answers[rows, number])
        # Rounding differs between a batch and a single prompt. A near tie is answered again alone, so that answers
        # do not depend on the batch. Half precision has too many near ties for that.
        if is_batch and logits.element_size() >= 4:
            unsure[rows] |= has_near_tie(logits) & running
        answers[rows, number] = token
        if number + 1 == n_tokens:
            break
        if stop_id is not None:
            running = running & (token != stop_id)
        indices = running.nonzero()[:, 0]
        if ended is not None and len(indices):
            going = rows[indices]
            indices = indices[~ended(answers[going, : number + 1], going).to(indices.device)]
            running = torch.zeros_like(running).index_fill(0, indices, True)
        if not len(indices):
            break
        # Dropping rows copies the cache of the others, so that it waits until a quarter have ended.
        if len(indices) <= 0.75 * len(rows):
            cache.compact(indices)
            rows, running = rows[indices], running[indices]
    return number + 1


def has_near_tie(logits: Tensor) -> Tensor:
    """Return which rows have two tokens within TIE_MARGIN rounding errors of the largest logit."""
    low, high = logits.aminmax(dim=-1, keepdim=True)
    margin = torch.maximum(-low, high) * (TIE_MARGIN * torch.finfo(logits.dtype).eps)
    return (logits >= high - margin).sum(-1) > 1
