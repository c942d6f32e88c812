"""A pack as one row of attention, for the device: ids and spans, computed while batches are made."""

from __future__ import annotations

from collections.abc import Sequence

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


def ends(lengths: Sequence[int]) -> Tensor:
    """Add up lengths from 0, int32 (S + 1,)."""
    return torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32))
