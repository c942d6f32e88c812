"""A pack as one row of attention, for the device: ids and spans, computed while batches are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def ids_from_0(lengths: Sequence[int], n_tokens: int) -> Tensor:
    """Count from 0 in every run, and in the padding.

    Example:
        >>> ids_from_0([3, 2], 8).tolist()
        [0, 1, 2, 0, 1, 0, 1, 2]
    """
    return torch.from_numpy(np.concatenate([np.arange(n) for n in (*lengths, n_tokens - sum(lengths))]))


def fixed_row(lengths: Sequence[int], anchors: Sequence[int] | None, n_tokens: int, longest: int) -> dict[str, Any]:
    """Describe a row whose padding is cut into runs of its own, none longer than `longest`.

    Shapes: the ends of the runs' queries `cu_q` int32 (S + 1,); with anchors the ends of their keys `cu_k` int32
        (S + 1,) and `key_places` int64 (keys,), else None.
    Example:
        >>> row = fixed_row([1, 2], (-1, 0), 8, longest=4)
        >>> row["cu_q"].tolist(), row["cu_k"].tolist(), row["key_places"].tolist()
        ([0, 1, 3, 7, 8], [0, 1, 4, 8, 9], [0, 0, 1, 2, 3, 4, 5, 6, 7])
    """
    assert max(lengths) <= longest, f"a run of {max(lengths)} tokens, longer than a window of {longest}"
    whole, rest = divmod(n_tokens - sum(lengths), longest)
    lengths = [*lengths, *[longest] * whole, *[rest] * (rest > 0)]
    row: dict[str, Any] = {"cu_q": ends(lengths), "longest": longest, "cu_k": None, "key_places": None}
    if anchors is None:
        return row
    anchors = [*anchors, *[-1] * (len(lengths) - len(anchors))]
    own = np.split(np.arange(n_tokens), np.cumsum(lengths)[:-1])
    keys = [places if anchor < 0 else np.insert(places, 0, anchor) for anchor, places in zip(anchors, own, strict=True)]
    return row | {"cu_k": ends([len(places) for places in keys]), "key_places": torch.from_numpy(np.concatenate(keys))}


def ends(lengths: Sequence[int]) -> Tensor:
    """Add up lengths from 0, int32 (S + 1,)."""
    return torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32))
