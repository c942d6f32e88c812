"""The data module: prepares the corpus, divides the streams among ranks, and saves the state of each."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, distributed

from lab.counts import targets_by_context, visible_context
from lab.data.arrangement import Arrangement
from lab.data.closing import check_closed
from lab.data.config import DataConfig
from lab.data.corpora import open_corpus
from lab.data.packing import IGNORE, AssignIds, Pack, PackStream
from lab.data.prefetching import Batch, Prefetched
from lab.data.preparation import end_of_document, is_prepared, prepare, shard_folder
from lab.data.rows import ends, ids_from_0
from lab.data.segments import index_documents, index_segments
from lab.data.selecting import Selection
from lab.data.shaped import Shaped, shape_corpus
from lab.data.shards import TokenStore
from lab.data.staging import stage, staged_folder
from lab.data.tokenizer import load_tokenizer, special_ends
from lab.errors import DataError
from lab.masks import Causal, WindowMask
from lab.shape import ShapeConfig
from lab.skip import skip_positions
from lab.skip.sentences import sentence_ends, split_sentences

FIRST_WINDOWS = 32  # in one of which an impactful token must occur
FloatArray = npt.NDArray[np.float64]


class Batches:
    """The packs of some streams in turn, endless; `weights` as in `to_batch`."""

    def __init__(self, streams: list[PackStream], weights: FloatArray | None = None) -> None:
        self.streams, self.weights = streams, weights

    def __iter__(self) -> Iterator[Batch]:
        """Yield one pack of each stream, again and again, in pinned memory where there is a GPU."""
        pins = torch.cuda.is_available()
        for stream in itertools.cycle(self.streams):
            batch = to_batch(next(stream), self.weights)
            yield {name: x.pin_memory() if isinstance(x, Tensor) else x for name, x in batch.items()} if pins else batch


def to_batch(pack: Pack, weights: FloatArray | None = None) -> Batch:
    """Convert a pack to a training batch: tensors to move to the device, and values that stay on the host.

    All that the device needs is a tensor here: a step that copied host values would wait for it. `weights` is the loss
    weight of a target by its visible context; left out, all weigh 1.

    Shapes: weights float64, longer than the longest run.
    """
    ids, scored, n_tokens = pack.position_ids, pack.targets != IGNORE, len(pack.tokens)
    return {
        "tokens": torch.from_numpy(pack.tokens)[None],
        "targets": torch.from_numpy(pack.targets)[None],
        "cu_seqlens": ends(pack.lengths),
        "lengths": tuple(pack.lengths),
        "position_ids": ids_from_0(pack.lengths, n_tokens) if ids is None else torch.from_numpy(ids),
        "starts": starts_of(pack),
        "anchors": pack.anchors,
        "counted": ids,
        "selected": pack.selected,
        "n_targets": int(np.count_nonzero(scored)),
        "supervised": targets_by_context(pack.lengths, pack.anchors, scored),
        "weights": None if weights is None else loss_weights(pack, scored, weights)[None],
        "stream": pack.stream,
        "state": pack.state,
    }


def loss_weights(pack: Pack, scored: np.ndarray, weights: FloatArray) -> Tensor:
    """Look up the loss weight of every target: float32 (pack_tokens,), 0 where nothing is scored."""
    out = np.zeros(len(scored), dtype=np.float32)
    context = visible_context(pack.lengths, pack.anchors)
    out[: len(context)] = weights[context]
    return torch.from_numpy(out * scored)


def starts_of(pack: Pack) -> tuple[int, ...] | None:
    """Return the first id of each run if ids count up by one from it, else None."""
    if pack.position_ids is None:
        return (0,) * len(pack.lengths)
    ends = np.cumsum(pack.lengths)
    steps = np.diff(pack.position_ids[: ends[-1]])
    steps[ends[:-1] - 1] = 1  # ids may jump between runs
    begins = ends - pack.lengths
    return tuple(pack.position_ids[begins].tolist()) if (steps == 1).all() else None


def arrangement_of(config: DataConfig, mask: WindowMask) -> Arrangement:
    """Resolve a mask's settings; the anchor is the token that begins every document, or else the one that ends it.

    Source: arXiv:2411.13476, section 5.3: models without <bos> take <eos> as the anchor.
    """
    running = getattr(mask, "ids", "running") == "running"
    if mask.method != "anchor":
        return Arrangement(mask=mask.method, running=running, chunks=mask.chunks)
    tokenizer = load_tokenizer(shard_folder(config))
    begin, _ = special_ends(tokenizer)
    bos = begin[0] if begin else None
    anchor = end_of_document(config, tokenizer) if bos is None else bos
    return Arrangement(mask="anchor", running=True, chunks=mask.chunks, anchor=anchor, bos=bos)


def skip_function(config: DataConfig, skip: Any) -> AssignIds:
    """Build the function that assigns position ids to a run of tokens."""
    by_sentence = skip.method == "longrecipe"
    ends = sentence_ends(load_tokenizer(shard_folder(config))) if by_sentence else None

    def place(tokens: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        sentences = None if ends is None else split_sentences(tokens, ends)
        return skip_positions(
            skip.method, len(tokens), target_len=skip.target_len, sentence_lengths=sentences, generator=generator
        )

    return place


class PackedData(lightning.LightningDataModule):
    """Packs of one corpus for one training run.

    `token_types` is the file that holds the impactful token types, where it is not skip.selection itself. So many
    consecutive ranks as `context_parallel` read the same streams.

    Units: `micro_batch_tokens` per pack, `n_streams` packs per global batch.
    """

    def __init__(
        self,
        config: DataConfig,
        *,
        seed: int,
        micro_batch_tokens: int,
        n_streams: int,
        mask: WindowMask = Causal(),
        skip: Any = None,
        shape: ShapeConfig | None = None,
        token_types: Path | None = None,
        context_parallel: int = 1,
    ) -> None:
        super().__init__()
        self.token_types, self.context_parallel = token_types, context_parallel
        self.mask, self.skip, self.shape = mask, skip, shape
        self.config, self.seed = config, seed
        self.micro_batch_tokens, self.n_streams = micro_batch_tokens, n_streams
        self.weights: FloatArray | None = None  # loss weights by visible context, once planned
        self.states: dict[int, np.ndarray] = {}

    def check_prepared(self) -> None:
        """Refuse a corpus that must be prepared first; every process checks, so that none waits for the others.

        Raises: DataError.
        """
        if not self.config.embedded:
            check_closed(shard_folder(self.config))
        if not self.config.embedded and not is_prepared(self.config):
            if getattr(self.config.corpus, "path", None):
                open_corpus(self.config)  # raises where the path is wrong
            raise DataError(
                f"data.corpus.name={self.config.corpus.name}: not prepared in {shard_folder(self.config)}; "
                "run python -m lab.prepare with the same config first"
            )

    def prepare_data(self) -> None:
        """Prepare an embedded corpus; any other must have been prepared. Then check names, sizes and manifests.

        One process of each node does this before the others open the corpus; it also copies shards and builds indices.

        Raises: DataError.
        """
        self.check_prepared()
        if not is_prepared(self.config):
            prepare(self.config, workers=len(os.sched_getaffinity(0)))
        stage(self.config)
        index_documents(staged_folder(self.config), self.segment_window())

    def segment_window(self) -> int:
        """Return the tokens of the longest segment: those of a window without what the mask adds to it."""
        if self.skip is not None and self.skip.selects:
            return int(self.skip.target_len)
        return self.config.window - arrangement_of(self.config, self.mask).extra_tokens

    @cached_property
    def store(self) -> TokenStore:
        """The training split, which must have been prepared."""
        return TokenStore.open(staged_folder(self.config), "train")

    @cached_property
    def shaped(self) -> Shaped | None:
        """The plan of the shape, computed once; None without a shape."""
        if self.shape is None:
            return None
        return shape_corpus(self.shape, self.config, self.store, self.mask)

    def setup(self, stage: str) -> None:
        """Open the training split."""
        self.arrangement = arrangement_of(self.config, self.mask)
        selects = self.skip is not None and self.skip.selects
        self.segments = index_segments(self.store, self.config.mode, self.segment_window())
        self.selection = self.open_selection() if selects else None
        self.skips = None if self.skip is None or selects else skip_function(self.config, self.skip)
        if self.shaped is not None:
            self.segments, self.skips = self.shaped.segments, self.shaped.skip
            self.weights = self.shaped.plan.weights

    def open_selection(self) -> Selection:
        """Read the token types that select sentences.

        Raises: LabError, also if the first windows contain none of them.
        """
        path = self.token_types or (Path(self.skip.selection) if self.skip.selection is not None else None)
        tokenizer = load_tokenizer(shard_folder(self.config))
        selection = Selection.of(self.skip, self.config.window, tokenizer, path)
        first = [self.segments.draw(sample, self.seed) for sample in range(min(FIRST_WINDOWS, self.segments.n))]
        selection.refuse_unmatched([self.store.read(s.start, s.length).astype(np.int64) for s in first])
        return selection

    def train_dataloader(self) -> Iterable[Batch]:
        """Load this rank's streams; with data.prefetch a thread packs them."""
        rank, world = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        own = range(rank // self.context_parallel, self.n_streams, world // self.context_parallel)
        batches = Batches([self.stream(j) for j in own], self.weights)
        return Prefetched(batches, self.config.prefetch) if self.config.prefetch else batches

    def stream(self, index: int, states: Mapping[int, np.ndarray] | None = None) -> PackStream:
        """Open a stream at its state, the saved one by default, or at its beginning."""
        states = self.states if states is None else states
        return PackStream(
            self.store,
            self.segments,
            stream=index,
            n_streams=self.n_streams,
            pack_tokens=self.micro_batch_tokens,
            seed=self.seed,
            look_ahead=self.config.look_ahead,
            arrangement=self.arrangement,
            skip=self.skips,
            selection=self.selection,
            state=None if index not in states else states[index].tolist(),
        )

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move a batch's tensors; Lightning's own search for them visits every number of its tuples."""
        return {name: x.to(device, non_blocking=True) if isinstance(x, Tensor) else x for name, x in batch.items()}

    def consumed(self, batch: Batch) -> None:
        """Record the state of a batch's stream; called after every batch trained on."""
        self.states[batch["stream"]] = np.asarray(batch["state"])

    def state_dict(self) -> dict[str, Tensor]:
        """Gather the states of all streams from all ranks: int64 (n_streams, 1 + look_ahead), row j for stream j."""
        states = dict(self.states)
        if distributed.is_available() and distributed.is_initialized():
            parts: list[dict[int, np.ndarray]] = [{} for _ in range(distributed.get_world_size())]
            distributed.all_gather_object(parts, self.states)
            states = {stream: state for part in parts for stream, state in part.items()}
        if len(states) < self.n_streams:
            return {}
        return {"streams": torch.from_numpy(np.stack([states[j] for j in range(self.n_streams)]))}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Restore the state of every stream."""
        self.states = {j: row.numpy() for j, row in enumerate(state_dict["streams"])}
