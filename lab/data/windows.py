"""Windows of one length with their targets, cut as in training with mode: concatenated."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from lab.data.config import DataConfig
from lab.data.packing import IGNORE, PackStream
from lab.data.preparation import shard_folder
from lab.data.segments import index_segments
from lab.data.shards import TokenStore
from lab.errors import DataError

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of text; a target is the next token, or IGNORE across documents and where nothing is scored.

    Shapes: `tokens` and `targets` int64 (windows, length).
    """

    tokens: IntArray
    targets: IntArray

    def rows(self) -> list[IntArray]:
        """List each window's tokens, followed by the next one if it is a target."""
        pairs = zip(self.tokens, self.targets[:, -1:], strict=True)
        return [np.concatenate([tokens, last[last != IGNORE]]) for tokens, last in pairs]


def held_out_windows(data: DataConfig, *, length: int, windows: int, seed: int) -> Windows:
    """Draw windows of joined held-out documents, without overlap.

    Raises: DataError if there are too few.
    """
    refuse_few(data, length=length, windows=windows)
    store = TokenStore.open(shard_folder(data), "held_out")
    segments = index_segments(store, "concatenated", length)
    stream = PackStream(store, segments, stream=0, n_streams=1, pack_tokens=length, seed=seed, look_ahead=1)
    packs = list(islice(stream, windows))
    return Windows(np.stack([pack.tokens for pack in packs]), np.stack([pack.targets for pack in packs]))


def refuse_few(data: DataConfig, *, length: int, windows: int) -> None:
    """Refuse held-out documents that are too short for the number of windows.

    Raises: DataError.
    """
    room = TokenStore.open(shard_folder(data), "held_out").n_tokens // length
    if room < windows:
        raise DataError(
            f"--windows={windows}: the held-out documents in {shard_folder(data)} hold {room} windows of "
            f"{length} tokens; lower it, shorten --length, raise data.held_out_frac, or use --text"
        )
