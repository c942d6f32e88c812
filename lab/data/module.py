"""The data module: prepares the corpus, divides the streams among ranks, and saves the state of each.

A thread packs while a step computes, which holds Python's lock only to queue its kernels.
"""

import hashlib
import itertools
import json
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.core.launch import exchange, sum_over_ranks
from lab.data.arrangement import Arrangement
from lab.data.batch import Batch, to_batch
from lab.data.beside import entry_of, labels_of, numbers_of, path_of, store_numbers
from lab.data.config import DataConfig
from lab.data.packing import (
    AssignIds,
    PackSettings,
    PackStream,
    count_samples,
)
from lab.data.preparation import Check, digest_of_data, prepare_missing, shard_folder
from lab.data.segments import SegmentIndex, index_documents, index_segments
from lab.data.selecting import Selection, read_token_types
from lab.data.shards import TokenStore
from lab.data.tokenizer import end_of_document, load_tokenizer, special_ends
from lab.masks import WindowMask
from lab.skip.methods import skip_positions
from lab.skip.sentences import sentence_ends, split_sentences

PREFETCH = 4  # packs that a thread makes ahead


def arrangement_of(config: DataConfig, mask: WindowMask) -> Arrangement:
    """Resolve a mask's settings; the anchor is the token that begins every document, or else the one that ends it.

    Source: arXiv:2411.13476, section 5.3: models without <bos> take <eos> as the anchor.
    """
    if not mask.is_anchored:
        return Arrangement(mask=mask)
    tokenizer = load_tokenizer(shard_folder(config))
    bos = next(iter(special_ends(tokenizer)[0]), None)
    anchor = end_of_document(config, tokenizer) if bos is None else bos
    return Arrangement(mask=mask, anchor=anchor, bos=bos)


def skip_function(config: DataConfig, skip: Any) -> AssignIds:
    """Build the function that assigns position ids to a run of tokens."""
    ends = sentence_ends(load_tokenizer(shard_folder(config))) if skip.needs_sentences else None

    def place(tokens: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        sentences = None if ends is None else split_sentences(tokens, ends)
        return skip_positions(skip, len(tokens), sentence_lengths=sentences, generator=generator)

    return place


class PackedData:
    """Packs of one corpus for one training run, by the settings of an `Experiment`.

    `token_types` is the file that holds the impactful token types, where it is not skip.selection itself. So many
    consecutive ranks as train.context_parallel read the same streams.
    """

    def __init__(self, experiment: Any, token_types: Path | None = None) -> None:
        self.experiment, self.token_types = experiment, token_types
        self.rank, self.world_size = 0, 1
        self.config: DataConfig = experiment.data
        self.n_streams: int = experiment.train.n_packs
        self.is_prepared = False
        self.states: dict[int, np.ndarray] = {}  # of all streams at a resume; only a rank's own are kept up to date

    def prepare_data(self, check: Check | None = None) -> None:
        """Prepare a generated corpus or a small text; any other must have been. Then check names, sizes and manifests.

        `check` may refuse the tokenizer before any document is tokenized. One process of each node does this before the
        others open the corpus; it also builds indices.

        Raises: DataError.
        """
        if self.is_prepared:
            return
        prepare_missing(self.config, check)
        index_documents(shard_folder(self.config), self.segment_window())
        for kind in self.experiment.stored:
            tokenizer = load_tokenizer(shard_folder(self.config))
            label = partial(labels_of, config=self.config, tokenizer=tokenizer, answers=kind == "answers")
            store_numbers(self.store, kind, label)
        self.beside(hashes=True)
        self.is_prepared = True

    def segment_window(self) -> int:
        """Return the tokens of the longest segment: those of a window without what the mask adds to it."""
        skip = self.experiment.skip
        if skip is not None and skip.selects:
            return int(skip.target_len)
        return self.config.window - int(self.experiment.mask.is_anchored)

    @cached_property
    def store(self) -> TokenStore:
        return TokenStore.open(shard_folder(self.config), "train")

    def beside(self, *, hashes: bool = False) -> dict[str, TokenStore]:
        """Open the numbers that the run reads beside the shards, by kind, compared with their sizes or their `hashes`.

        Raises: DataError for any that are not stored, or not what was.
        """
        needed = self.experiment.stored.items()
        return {kind: numbers_of(self.store, kind, named, hashes=hashes) for kind, named in needed}

    def digest(self) -> str:
        """Hash what training reads: tokenizer, shards in order, and the numbers beside them, from their manifests.

        Raises: DataError.
        """
        numbers = {}
        for kind in self.experiment.stored:
            numbers[kind] = [entry_of(path_of(shard, kind)) for shard in self.store.shards]
        read = [digest_of_data(shard_folder(self.config)), numbers]
        return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()

    @cached_property
    def segments(self) -> SegmentIndex:
        return index_segments(self.store, self.config.mode, self.segment_window())

    def epoch_tokens(self) -> int:
        """Count the tokens that training consumes in one epoch; about that, if sentences are chosen."""
        tokens = self.store.n_tokens + self.segments.n * self.experiment.mask.is_anchored
        longest = self.segment_window()
        return max(1, tokens * min(self.config.window, longest) // longest)

    def epoch(self) -> float:
        """Count how often the corpus has been trained on, by its segments; a collective call."""
        own = sum(count_samples(self.states[j], j, self.n_streams) for j in self.numbers())
        total = int(sum_over_ranks(np.array([own]))[0]) // self.experiment.train.context_parallel
        return total / self.segments.n

    def setup(self, rank: int = 0, world_size: int = 1) -> None:
        """Open the training split for one of the ranks.

        Raises: ConfigError for token types that cannot be read.
        """
        self.rank, self.world_size = rank, world_size
        experiment = self.experiment
        config, skip = self.config, experiment.skip
        self.settings = PackSettings(
            store=self.store,
            segments=self.segments,
            pack_tokens=experiment.train.micro_batch_tokens,
            seed=experiment.run.seed,
            look_ahead=config.look_ahead,
            n_streams=self.n_streams,
            arrangement=arrangement_of(config, experiment.mask),
            evidence=experiment.evidence,
            weights=experiment.weights,
            beside=self.beside(),
        )
        if config.schedule is not None:
            after = partial(config.schedule.block, config.window)
            self.settings.block = lambda number: after(number * experiment.train.batch_tokens)
        if skip is not None and skip.selects:
            path = self.token_types or (Path(skip.selection) if skip.by_types else None)
            tokenizer = load_tokenizer(shard_folder(config))
            impactful = None if path is None else read_token_types(path, tokenizer)
            self.settings.selection = Selection(skip, config.window, sentence_ends(tokenizer), impactful)
        elif skip is not None:
            self.settings.skip = skip_function(config, skip)

    def batches(self) -> Generator[Batch, None, None]:
        """Load this rank's streams, one pack of each in turn, endless; a thread packs them ahead."""
        streams = [self.stream(j) for j in self.numbers()]
        return ahead(map(to_batch, map(next, itertools.cycle(streams))), PREFETCH)

    def numbers(self) -> range:
        """Return the numbers of this rank's streams; ranks that share packs have the same."""
        shared = self.experiment.train.context_parallel
        return range(self.rank // shared, self.n_streams, self.world_size // shared)

    def stream(self, index: int, states: Mapping[int, np.ndarray] | None = None) -> PackStream:
        """Open a stream at its state, the saved one by default, or at its beginning."""
        state = (self.states if states is None else states).get(index)
        return PackStream(self.settings, index, None if state is None else state.tolist())

    def consumed(self, batch: Batch) -> None:
        """Record the state of a batch's stream; called after every batch trained on."""
        self.states[batch.resume.stream] = np.asarray(batch.resume.state)

    def state_dict(self) -> dict[str, Tensor]:
        """Gather the states of all streams, each from the ranks that read it: int64 (n_streams, 2 + look_ahead).

        A rank also holds what the streams of others had reached at a resume, and leaves it out. Ranks that
        share packs must agree. A collective call.
        """
        parts = [part for rank in exchange({j: self.states[j] for j in self.numbers()}) for part in rank.items()]
        states = dict(parts)
        assert all(np.array_equal(states[j], state) for j, state in parts), "ranks that share packs have read the same"
        return {"streams": torch.from_numpy(np.stack([states[j] for j in range(self.n_streams)]))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.states = {j: row.numpy() for j, row in enumerate(state_dict["streams"])}


def ahead(batches: Iterator[Batch], prefetch: int) -> Generator[Batch, None, None]:
    """Yield batches that a thread has made ahead, in pinned memory where there is a GPU; it ends with the iterator.

    What making a batch raises is raised where that batch is due. Garbage collection may end the iterator in any thread,
    even one that holds a lock which the packing thread needs to end: nothing waits for that.
    """
    pins = torch.cuda.is_available()

    def made() -> Batch:
        batch = next(batches)
        return batch.pin() if pins else batch

    pool = ThreadPoolExecutor(1, "packing")
    try:
        waiting = deque(pool.submit(made) for _ in range(prefetch))
        while True:
            batch = waiting.popleft().result()
            waiting.append(pool.submit(made))
            yield batch
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
