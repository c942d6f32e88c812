"""A shuffle of 0 .. n - 1 that needs no memory: a keyed permutation evaluated at one index at a time.

A four-round Feistel network permutes the numbers of 2h bits, the smallest even width that holds n; a result
outside 0 .. n - 1 is permuted again until it falls inside, which keeps the map a permutation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint64]
Value = Any  # an int, or Numbers
ROUNDS = 4
MASK = 2**64 - 1


def shuffled(indices: Numbers, n: int, key: int) -> Numbers:
    """Return the images of indices under the permutation of 0 .. n - 1 that `key` selects.

    Example:
        >>> sorted(shuffled(np.arange(10, dtype=np.uint64), 10, key=7).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)  # half the smallest even number of bits that holds 0 .. n - 1
    keys = [mix(key * ROUNDS + turn) for turn in range(ROUNDS)]
    images: Numbers = feistel(indices, half, keys)
    while len(outside := np.flatnonzero(images >= n)):
        images[outside] = feistel(images[outside], half, keys)
    return images


def feistel(value: Value, half: int, keys: Sequence[int]) -> Value:
    """Permute the numbers of 2 * half bits."""
    low_mask = (1 << half) - 1
    left, right = value >> half, value & low_mask
    for key in keys:
        left, right = right, left ^ (mix(right ^ key) & low_mask)
    return left << half | right


def mix(value: Value) -> Value:
    """Scramble 64 bits (the splitmix64 finaliser)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def sample_segments(samples: npt.NDArray[np.int64], n: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the segments of global samples; every epoch of n samples is a shuffle of its own."""
    epochs, places = np.divmod(samples, n)
    found = np.empty_like(samples)
    for epoch in np.unique(epochs).tolist():
        own = epochs == epoch
        found[own] = shuffled(places[own].astype(np.uint64), n, key=mix(seed) ^ mix(mix(epoch)))
    return found
