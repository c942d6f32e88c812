"""What the tests of the skip methods share: many draws, and how well they fit equally likely outcomes."""

import collections

import numpy as np

from lab.skip import SKIP_METHODS, skip_positions

DRAWS = 3000
DEVIATIONS = 4.0  # standard deviations, of a mean and of chi-square: less than 1 seed in 100, and the seeds are fixed


def rng(seed=0):
    return np.random.default_rng(seed)


def drawn(method, n_tokens, target_len, lengths=None, times=DRAWS, seed=0):
    """Draw ids many times from one generator."""
    config, generator = SKIP_METHODS[method](target_len=target_len), rng(seed)
    return [skip_positions(config, n_tokens, sentence_lengths=lengths, generator=generator) for _ in range(times)]


def check_shares(samples, weights):
    """Compare how often each outcome was drawn with its weight, by chi-square; no other outcome may occur."""
    seen = collections.Counter(tuple(ids.tolist()) for ids in samples)
    assert not seen.keys() - weights.keys(), "ids that are not admissible"
    expected = {ids: weight * len(samples) / sum(weights.values()) for ids, weight in weights.items()}
    chi_square = sum((seen[ids] - mean) ** 2 / mean for ids, mean in expected.items())
    freedom = len(weights) - 1
    assert chi_square <= freedom + DEVIATIONS * (2 * freedom) ** 0.5, f"chi-square {chi_square:.1f} for {freedom}"
