"""The data of a training run: prepared corpus, streams of packs for each rank, and the saved state of each stream.

A thread packs while a step computes: the step holds Python's lock only to queue its kernels.
"""

import itertools
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.core.errors import DataError
from lab.core.launch import exchange, sum_over_ranks
from lab.data.batch import Batch, to_batch
from lab.data.config import DataConfig, hash_json
from lab.data.packing import Pack, PackSettings, PackStream, count_samples
from lab.data.preparation import Check, prepare_missing, shard_folder
from lab.data.segments import SegmentIndex, index_segments
from lab.data.selecting import Selection, read_token_types, sentence_ends
from lab.data.shards import TokenStore, read_manifests, read_prepared, read_shard_manifest, task_name
from lab.data.tokenizer import TOKENIZER, end_of_document, load_tokenizer, special_ends
from lab.masks import Arrangement, WindowMask

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio


def build_arrangement(config: DataConfig, mask: WindowMask) -> Arrangement:
    """Resolve a mask's settings; the anchor is the token that begins every document, or else the token that ends it.

    Source: arXiv:2411.13476, section 5.3: models without <bos> take <eos> as the anchor.
    """
    if not mask.is_anchored:
        return Arrangement(mask=mask)
    tokenizer = load_tokenizer(shard_folder(config))
    bos = next(iter(special_ends(tokenizer)[0]), None)
    anchor = end_of_document(config, tokenizer) if bos is None else bos
    return Arrangement(mask=mask, anchor=anchor, bos=bos)


class PackedData:
    """Packs of a corpus, or of a mixture, for one training run, by the settings of an `Experiment`.

    `token_types` is the file of the impactful token types if it is not skip.selection itself. Consecutive ranks, of
    the number train.context_parallel, read the same streams.
    """

    def __init__(self, experiment: Any, token_types: Path | None = None) -> None:
        self.experiment, self.token_types = experiment, token_types
        self.rank, self.world_size = 0, 1
        self.config: DataConfig = experiment.data
        self.n_streams: int = experiment.train.n_packs
        self.is_prepared = False
        # A resume loads the states of all streams. A rank then updates only those of the streams that it reads.
        self.states: dict[int, np.ndarray] = {}

    def prepare_data(self, check: Check | None = None) -> None:
        """Prepare a generated corpus or a small text, and check the shards.

        `check` may reject the tokenizer before any document is tokenized. One process of each node calls this before
        the others open the corpus.

        Raises: DataError.
        """
        if self.is_prepared:
            return
        prepare_missing(self.config, check)
        read_manifests(shard_folder(self.config))
        self.is_prepared = True

    def segment_window(self) -> int:
        """Return the tokens of the longest segment: those of a window without the anchor that a mask adds to it."""
        skip = self.experiment.skip
        if skip is not None and skip.selects:
            return int(skip.target_len)
        return self.config.window - int(self.experiment.mask.is_anchored)

    @property
    def store(self) -> TokenStore:
        return self.segments[0].store

    def digest(self) -> str:
        """Hash what training reads: tokenizer and shards in order, from their manifests.

        Raises: DataError, also for corpora with different tokenizers.
        """
        listed: list[object] = []
        for folder in map(shard_folder, self.config.parts):
            record = read_prepared(folder)
            assert record is not None, "prepare_data has been called"
            shards = [read_shard_manifest(folder / task_name(task))["files"] for task in range(record["tasks"])]
            listed += [record["files"].get(TOKENIZER), shards]
            if listed[-2] != listed[0]:
                raise DataError(f"{folder}: has another tokenizer than the first corpus; delete it, and prepare again")
        # checkpoints contain this digest: its form, a digest next to sidecars that are gone, stays as it is
        return hash_json([hash_json(listed), {}])

    @cached_property
    def segments(self) -> list[SegmentIndex]:
        """The training segments of each corpus; counts of epochs are of the first one's."""
        stores = [TokenStore.open(shard_folder(part), "train") for part in self.config.parts]
        return [index_segments(store, self.config.mode, self.segment_window()) for store in stores]

    def epoch_tokens(self) -> int:
        """Count the tokens that training consumes in one epoch; an estimate if sentences are selected."""
        tokens = self.store.n_tokens + self.segments[0].n * self.experiment.mask.is_anchored
        # with selected sentences a segment of the target length gives at most a window of tokens
        longest = self.segment_window()
        return max(1, tokens * min(self.config.window, longest) // longest)

    def epoch(self) -> float:
        """Count how often the corpus, or a mixture's first, has been trained on, by its segments; a collective call."""
        end = 2 + self.config.look_ahead  # of the first corpus's part of a state
        own = sum(count_samples(self.states[j][:end], j, self.n_streams) for j in self.numbers())
        # ranks that share streams all count the same samples
        total = int(sum_over_ranks(np.array([own]))[0]) // self.experiment.train.context_parallel
        return total / self.segments[0].n

    def setup(self, rank: int = 0, world_size: int = 1) -> None:
        """Open the training split for one of the ranks.

        Raises: ConfigError for token types that cannot be read.
        """
        self.rank, self.world_size = rank, world_size
        experiment = self.experiment
        config, skip = self.config, experiment.skip
        self.settings = PackSettings(
            store=self.store,
            segments=self.segments[0],
            pack_tokens=experiment.train.micro_batch_tokens,
            seed=experiment.run.seed,
            look_ahead=config.look_ahead,
            n_streams=self.n_streams,
            arrangement=build_arrangement(config, experiment.mask),
            evidence=experiment.evidence,
            weights=experiment.weights,
        )
        if skip is None:
            return
        if not skip.selects:
            self.settings.skip = skip
        if not skip.needs_sentences:
            return
        tokenizer = load_tokenizer(shard_folder(config))
        self.settings.sentence_ends = ends = sentence_ends(tokenizer)
        if skip.selects:
            impactful = np.ones_like(ends)  # every sentence remains
            if self.token_types is not None or skip.by_types:
                impactful = read_token_types(self.token_types or Path(skip.selection), tokenizer)
            self.settings.selection = Selection(skip, config.window, ends, impactful)

    def batches(self) -> Generator[Batch, None, None]:
        """Yield packs of this rank's streams in turn, without end; a thread packs them ahead."""
        streams = [self.stream(j) for j in self.numbers()]
        return prefetch(map(to_batch, map(next, itertools.cycle(streams))), 4)

    def numbers(self) -> range:
        """Return the numbers of this rank's streams; ranks that share packs have the same."""
        shared = self.experiment.train.context_parallel
        # ranks that share packs are neighbours: all of such a group have the same quotient
        return range(self.rank // shared, self.n_streams, self.world_size // shared)

    def stream(self, index: int) -> Iterator[Pack]:
        """Yield the packs of a stream from its saved state, or its start; in a mixture each pack is of one corpus.

        The corpus of global pack n, which is pack n // n_streams of stream n % n_streams, is a function of (seed, n):

            u = frac((seed + n) * 0.618...)       0.618...: the golden ratio's fraction, GOLDEN / 2^64
            the corpus is the first one for which the shares of it and of those before add up to more than u

        In any range of n these numbers are spread evenly, so that the shares hold within a few packs. Each corpus has
        streams of its own, those of a run on that corpus alone. So its samples have the same order, and each of its
        epochs is a shuffle of its own. A stream's state is those of the corpora's streams, end to end, but begins
        with the number of all packs.
        """
        streams = []
        states = np.split(self.states.get(index, np.zeros(0)), len(self.segments))
        for segments, state in zip(self.segments, states):
            streams.append(PackStream(replace(self.settings, store=segments.store, segments=segments), index, state))
        bounds = np.cumsum(self.config.weights)
        for step in itertools.count(streams[0].n_packs):
            u = (self.settings.seed + step * self.n_streams + index) * GOLDEN % 2**64 / 2**64
            corpus = int(bounds[:-1].searchsorted(u * bounds[-1], side="right"))
            pack = next(streams[corpus])
            pack.corpus = corpus
            pack.state = np.concatenate([*map(PackStream.state, streams)])
            pack.state[0] = step + 1
            yield pack

    def consumed(self, batch: Batch) -> None:
        """Record the state of a batch's stream; called after every batch that was trained on."""
        self.states[batch.pack.stream] = batch.pack.state

    def state_dict(self) -> dict[str, Tensor]:
        """Gather the states of all streams, each from the ranks that read it: int64 (n_streams, 2 + look_ahead).

        A collective call. Ranks that share packs must agree.
        """
        # a rank's states of other ranks' streams are those of the last resume
        own = {j: self.states[j] for j in self.numbers()}
        states: dict[int, np.ndarray] = {}
        for rank in exchange(own):
            states |= rank
        return {"streams": torch.from_numpy(np.stack([states[j] for j in range(self.n_streams)]))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.states = {j: row.numpy() for j, row in enumerate(state_dict["streams"])}


def prefetch(batches: Iterator[Batch], n: int) -> Generator[Batch, None, None]:
    """Yield batches that a thread makes `n` ahead, in pinned memory if there is a GPU; it ends with the iterator.

    An exception while a batch is made is raised in place of that batch.
    """
    pins = torch.cuda.is_available()

    def make() -> Batch:
        batch = next(batches)
        return batch.pin() if pins else batch

    pool = ThreadPoolExecutor(1, "packing")
    try:
        waiting = deque(pool.submit(make) for _ in range(n))
        while True:
            batch = waiting.popleft().result()
            waiting.append(pool.submit(make))
            yield batch
    finally:
        # Garbage collection may end this generator in any thread, even in one that holds a lock which the packing
        # thread needs to end: waiting for it would be a deadlock.
        pool.shutdown(wait=False, cancel_futures=True)
