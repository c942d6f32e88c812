"""A reference model's losses of all training tokens, stored beside the shards for weights.control: loss.

Documents are cut every data.window tokens as in mode natural; a token's loss, in nats, is that after the tokens of its
piece before it. The first token of a document has none, 0. One reference is stored for a corpus: .reference.json names
it, and another one is refused.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from eval.engine.subject import Subject, as_subject
from lab.command import Bar
from lab.data.config import DataConfig
from lab.data.labels import store_numbers
from lab.data.preparation import shard_folder
from lab.data.shards import Shard, TokenStore
from lab.data.tokenizer import load_tokenizer, vocabulary_hash
from lab.errors import DataError
from lab.evidence.base import IGNORE
from lab.files import read_object, write_json
from lab.loading import open_model
from lab.train.environment import device_for

RECORD = ".reference.json"
AT_ONCE = 16_384  # tokens of a batch, padding included


def store_losses(config: DataConfig, model: Path) -> None:
    """Score the shards that are not scored yet.

    Raises: LabError, also for a model with another vocabulary, or where another model's losses are stored.
    """
    folder = shard_folder(config)
    device = device_for("auto")
    subject = as_subject(open_model(model, device=device), model, device)
    if vocabulary_hash(subject.tokenizer) != vocabulary_hash(load_tokenizer(folder)):
        raise DataError(f"--score={model}: has another vocabulary than {folder}; score with a model trained on it")
    record = {"model": subject.model.name, "weights": subject.weights, "window": config.window}
    remedy = f"delete it and every .loss-* of {folder}"
    if (folder / RECORD).exists() and read_object(folder / RECORD, DataError, remedy) != record:
        raise DataError(f"--score={model}: {folder / RECORD} names another model or window; to replace it, {remedy}")
    write_json(folder / RECORD, record)
    store_numbers(TokenStore.open(folder, "train"), "loss", lambda shard: losses_of(subject, shard, config.window))


def losses_of(subject: Subject, shard: Shard, window: int) -> np.ndarray:
    """Compute the loss of every token of a shard: float16 (tokens,)."""
    bounds = pairwise([0, *shard.ends.tolist()])
    pieces = [(at, min(at + window, end - 1)) for begin, end in bounds for at in range(begin, end - 1, window)]
    pieces.sort(key=lambda piece: piece[0] - piece[1])  # the longest first
    out = np.zeros(len(shard.tokens), dtype=np.float16)
    text = torch.from_numpy(shard.tokens.astype(np.int64))
    with Bar(total=len(pieces), desc="score", unit="piece") as bar:
        while bar.n < len(pieces):
            longest = pieces[bar.n][1] - pieces[bar.n][0]
            rows = pieces[bar.n : bar.n + max(1, AT_ONCE // longest)]
            tokens = pad_sequence([text[start:stop] for start, stop in rows], batch_first=True)
            targets = pad_sequence([text[start + 1 : stop + 1] for start, stop in rows], True, IGNORE)
            for (start, stop), losses in zip(rows, subject.losses(tokens, targets).cpu().numpy(), strict=True):
                out[start + 1 : stop + 1] = losses[: stop - start]
            bar.update(len(rows))
    return out
