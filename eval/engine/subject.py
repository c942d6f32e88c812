"""A model under test: how it is run, and how results name it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from eval.engine.command import Request
from lab.core.errors import ConfigError
from lab.core.types import Row
from lab.counts import SavedCounts
from lab.data.tokenizer import require_tokenizer
from lab.loading import OpenedModel, open_model, token_ids
from lab.model.attention.inspection import token_scores
from lab.model.decoder import Decoder
from lab.model.devices import device_for, processor, total_memory
from lab.model.generate import Ended, greedy
from lab.model.huggingface.foreign import AnyDecoder, Foreign
from lab.results.store import short_hash
from lab.runs.checkpoints import COUNTS, Checkpoint, folder_name
from lab.runs.source import is_hub_id, resolve_path
from lab.train.environment import describe_source

LENGTHS = ("lengths", "length", "max_length", "window", "prompts")  # options that a model must have positions for
MOST_WINDOWS = 1024  # of the longest text in training windows; papers extend by at most 64
AnyIds = np.typing.NDArray[Any]  # of any integer type, as in a store
SUBJECT = ("model", "checkpoint", "weights", "method", "precision")  # the fields that name a model in rows


@dataclass(frozen=True)
class Subject:
    """A model under test."""

    model: OpenedModel
    tokenizer: Tokenizer
    stop_id: int | None
    saved: Checkpoint | None
    weights: str
    precision: str
    device: torch.device

    @property
    def counts(self) -> SavedCounts | None:
        """Read the position frequency at the checkpoint; None if it was not counted."""
        path = self.saved and self.saved.folder / COUNTS
        return SavedCounts.read(path) if path and path.exists() else None

    @property
    def row(self) -> Row:
        """The fields about the model, the code and the hardware, which every row has."""
        checkpoint = None if self.saved is None else self.saved.folder.name
        about = {"checkpoint": checkpoint, "weights": self.weights, "precision": self.precision}
        return {**source(self.model, self.device), **about}

    @property
    def most_tokens(self) -> int | None:
        """The tokens that a model with a table of positions reads at most; None for any other model."""
        return self.model.decoder.most_tokens if isinstance(self.model.decoder, Foreign) else None

    def cap_length(self, tokens: int) -> int:
        return min(tokens, self.most_tokens or tokens)

    @property
    def vocab_size(self) -> int:
        return self.model.decoder.cfg.vocab_size

    def computing(self) -> AbstractContextManager[Any]:
        """Compute in bfloat16 if the run trained in it, and on any GPU if the model is of no run."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bfloat16" else nullcontext()

    def generate(self, prompts: Tensor, n_tokens: int, ended: Ended | None = None) -> Tensor:
        """Continue prompts greedily: int64 (B, T) to int64 (B, at most n_tokens)."""
        with self.computing():
            return greedy(self.model.decoder, prompts.to(self.device), n_tokens, self.stop_id, ended=ended)

    def losses(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return each target's loss in nats, float64 (B, T), 0 where a target is below 0."""
        return self.scores(tokens, targets)[0]

    def scores(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return each target's loss, and 1 where it is the most likely token, float64 (2, B, T)."""
        with self.computing():
            return token_scores(self.model.decoder, tokens.to(self.device), targets.to(self.device))[:2]


def open_subject(request: Request) -> Subject:
    """Open the model of a command line."""
    options = request.options
    device = device_for(options.device)
    model = open_model(request.model, request.overrides, device=device, window=getattr(options, "window", None))
    subject = build_subject(model, request.model, device)
    lengths = {}
    for name in LENGTHS:
        if value := getattr(options, name, None):
            lengths[name] = max(value) if isinstance(value, tuple) else value
    check_lengths(lengths, subject)
    return subject


def check_lengths(lengths: Mapping[str, int], subject: Subject) -> None:
    """Reject lengths, by option, for which the model has no positions, or which exceed its window or memory by far.

    Raises: ConfigError with a line for each option.
    """
    cfg = subject.model.decoder.cfg
    token_bytes = 2 * 2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim  # keys and values, in bfloat16
    # A typing error such as 10 times the length is rejected before a machine runs out of memory.
    most = min(MOST_WINDOWS * subject.model.train_len, total_memory(subject.device) // token_bytes)
    rule = f"must be <= {most:,}, {MOST_WINDOWS:,} windows of the model, or the keys and values that memory holds"
    if subject.most_tokens is not None:
        most = subject.most_tokens
        rule = f"must be <= {most:,}, the positions that {subject.model.name} has"
    errors = [f"--{name}={length}: {rule}; lower it" for name, length in lengths.items() if length > most]
    if errors:
        raise ConfigError(*errors)


def build_subject(model: OpenedModel, place: Path, device: torch.device) -> Subject:
    """Collect what tests need from a model opened at `place` on `device`.

    Raises: DataError for a model without a tokenizer.
    """
    tokenizer = require_tokenizer(model.tokenizer)
    stop_id = token_ids(model)["eos_token_id"]
    if isinstance(stop_id, list):  # as config.json may have
        stop_id = stop_id[0] if stop_id else None
    # A run is tested in the precision of its training; other models on a GPU in bfloat16, as published.
    in_bf16 = device.type == "cuda"
    if model.experiment is not None:
        in_bf16 = model.experiment.train.bf16
    saved = None
    if model.folder is not None and model.consumed_tokens is not None:
        saved = Checkpoint(model.folder / "checkpoints" / folder_name(model.consumed_tokens))
    weights = identify_weights(place) if saved is None else saved.digest[:16]
    return Subject(model, tokenizer, stop_id, saved, weights, "bfloat16" if in_bf16 else "float32", device)


def identify_weights(place: Path) -> str:
    """Name the weights of a model of the hub by its commit, those of a folder by its files' names, sizes and times."""
    if is_hub_id(place):
        return resolve_path(place).name[:16]
    # Hashing the weights would read gigabytes at every start.
    files = [(path.name, path.stat()) for path in sorted(resolve_path(place).glob("*.safetensors"))]
    return short_hash("".join([f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in files]), 16)


def doublings(first: int, last: int) -> tuple[int, ...]:
    """List the powers of two from `first` up to `last`, or only `last` if there is none.

    Example:
        >>> doublings(2, 12), doublings(64, 8)
        ((2, 4, 8), (8,))
    """
    return tuple(2**k for k in range(last.bit_length()) if first <= 2**k <= last) or (last,)


def source(model: OpenedModel, device: torch.device) -> Row:
    return describe_source(model.name, model.consumed_tokens, model.method, processor(device))


def to_bfloat16(decoder: AnyDecoder) -> AnyDecoder:
    if isinstance(decoder, Foreign):
        return decoder.remade(lambda model: deepcopy(model).bfloat16())
    return deepcopy(decoder).bfloat16()


def build_random(decoder: AnyDecoder, seed: int) -> AnyDecoder:
    """Make another model of the same config and position methods, its weights sampled with a seed."""
    if isinstance(decoder, Foreign):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return decoder.remade(lambda model: type(model)(deepcopy(model.config)).to(model.device))
    other = Decoder(
        decoder.cfg, frequencies=decoder.frequencies, distance=decoder.distance, backend=decoder.backend, seed=seed
    )
    return other.to(decoder.embedding.weight.device).eval()
