"""A reference model's losses of all training tokens, stored beside the shards; the contexts that it needs; key tokens.

Documents are cut every data.window tokens as in mode natural; a token's loss, in nats, is that after the tokens of its
piece before it. The first token of a document has none, 0. One reference is stored for a corpus: .reference.json names
it, and another one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch.nn.utils.rnn import pad_sequence

from eval.engine.sliding import windows
from eval.engine.subject import AnyIds, Subject, as_subject, doublings
from lab.command import Bar
from lab.data.beside import store_numbers
from lab.data.config import DataConfig
from lab.data.preparation import shard_folder
from lab.data.shards import Shard, TokenStore
from lab.data.tokenizer import load_tokenizer, vocabulary_hash
from lab.errors import DataError
from lab.evidence.base import IGNORE
from lab.evidence.stored import FIRST, TOLERANCE
from lab.files import read_object, write_json
from lab.loading import open_model
from lab.train.environment import device_for

RECORD = ".reference.json"
AT_ONCE = 16_384  # tokens of a batch, padding included
ALPHA, BETA = 2.0, -2.0  # nats, of key tokens (arXiv:2410.23771)


def open_reference(place: Path, tokenizer: Tokenizer, option: str, device: torch.device) -> Subject:
    """Open a reference model.

    Raises: LabError, also for another vocabulary than the tokenizer's.
    """
    subject = as_subject(open_model(place, device=device), place, device)
    if vocabulary_hash(subject.tokenizer) != vocabulary_hash(tokenizer):
        raise DataError(f"{option}={place}: has another vocabulary; name a model with the same tokenizer")
    return subject


def store_scores(config: DataConfig, model: Path, *, gain: bool) -> None:
    """Score the shards that are not scored yet: losses, and with `gain` the least contexts of lab.evidence.stored.

    Raises: LabError, also for a model with another vocabulary, or where another model's losses are stored.
    """
    folder = shard_folder(config)
    subject = open_reference(model, load_tokenizer(folder), "--score", device_for("auto"))
    record = {"model": subject.model.name, "weights": subject.weights, "window": config.window}
    remedy = f"delete it and every .loss-* and .gain-* of {folder}"
    if (folder / RECORD).exists() and read_object(folder / RECORD, DataError, remedy) != record:
        raise DataError(f"--score={model}: {folder / RECORD} names another model or window; to replace it, {remedy}")
    write_json(folder / RECORD, record)
    store, window = TokenStore.open(folder, "train"), config.window
    store_numbers(
        store, "loss", lambda shard: losses_of(subject, shard.tokens, shard.ends, window, window).astype(np.float16)
    )
    if gain:
        store_numbers(store, f"gain-{window}", lambda shard: least_contexts(subject, shard, window))


def least_contexts(subject: Subject, shard: Shard, window: int) -> np.ndarray:
    """Find the least context that each token of a shard needs, 0 where FIRST tokens suffice: int32 (tokens,)."""
    text = subject, shard.tokens, shard.ends, window
    most = losses_of(*text, window) + TOLERANCE
    begins = np.repeat([0, *shard.ends[:-1]], np.diff(shard.ends, prepend=0))
    out = (np.arange(len(most)) - begins - 1) % window + 1  # the whole context, of all but first tokens
    waiting = np.ones(len(most), dtype=np.bool_)
    for context in doublings(FIRST, window - 1):
        suffices = waiting & (losses_of(*text, context, wanted=waiting) <= most)
        out[suffices] = np.minimum(out[suffices], context) if context > FIRST else 0
        waiting &= ~suffices
    return out.astype(np.int32)


def key_tokens(subject: Subject, documents: Sequence[AnyIds], short: int) -> list[npt.NDArray[np.bool_]]:
    """Find each document's key tokens, those that a model predicts well, and well only by the far context.

        log p(token | whole) - log p(token | short) > ALPHA    and    log p(token | whole) > BETA,    in nats

    The whole context is all of the document before the token. The short one is its last `short` tokens and at most a
    quarter more, as in the released code, which moves by 1,024 tokens at 4,096.

    Source: arXiv:2410.23771, section 3 (LSD, LCL); the bounds are those of the released code.
    """
    ends, step = np.cumsum([*map(len, documents)]), max(1, short // 4)
    longest = max(map(len, documents))
    text = subject, np.concatenate(documents), ends, longest
    whole, near = losses_of(*text, longest), losses_of(*text, short + step - 1, step)
    return np.split((near - whole > ALPHA) & (whole < -BETA), ends[:-1])


def losses_of(
    subject: Subject, ids: AnyIds, ends: AnyIds, window: int, context: int, step: int = 0, wanted: AnyIds | None = None
) -> np.ndarray:
    """Compute the loss of every token of documents after at most `context` tokens of its piece: float32 (tokens,).

    `ends` are where documents end. Passes move by `step` tokens, a quarter of the context unless given. One that
    scores none of the tokens that are `wanted` is left out.
    """
    bounds = pairwise([0, *ends.tolist()])
    pieces = [(at, min(at + window, end - 1)) for begin, end in bounds for at in range(begin, end - 1, window)]
    step = step or max(1, context // 4)
    steps = [(at, each) for at, stop in pieces for each in windows(stop + 1 - at, context + 1, step)]
    passes = [(at + begin, at + end, at + first) for at, (begin, end, first) in steps]
    passes = [each for each in passes if wanted is None or wanted[each[2] : each[1]].any()]
    passes.sort(key=lambda each: each[0] - each[1])  # the longest first
    out = np.zeros(len(ids), dtype=np.float32)
    text = torch.from_numpy(ids.astype(np.int64))
    with Bar(total=len(passes), desc=f"score, {context} tokens", leave=False) as bar:
        while bar.n < len(passes):
            longest = passes[bar.n][1] - passes[bar.n][0] - 1
            rows = passes[bar.n : bar.n + max(1, AT_ONCE // longest)]
            tokens = pad_sequence([text[begin : end - 1] for begin, end, _ in rows], batch_first=True)
            targets = torch.full_like(tokens, IGNORE)
            for target, (begin, end, first) in zip(targets, rows, strict=True):
                target[first - 1 - begin : end - 1 - begin] = text[first:end]
            for (begin, end, first), losses in zip(rows, subject.losses(tokens, targets).cpu().numpy(), strict=True):
                out[first:end] = losses[first - 1 - begin : end - 1 - begin]
            bar.update(len(rows))
    return out
