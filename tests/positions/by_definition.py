"""A distance method against its equation, pair by pair in whole numbers and fractions."""

import random
from fractions import Fraction

import torch

OFFSETS = [0, 1, 1000, 2**33]  # of the first token; the last is beyond 32-bit ids


def check_by_definition(method, rule, seed, tolerance=0):
    """Compare causal entries of `rel_pos` at random, gapped positions with `rule(m, n)`; `tolerance` is relative."""
    rng = random.Random(seed)
    for offset in OFFSETS:
        ids = range(offset, offset + rng.randint(1, 60))
        q_pos, k_pos = (sorted(rng.sample(ids, rng.randint(1, min(len(ids), 16)))) for _ in "qk")
        rel = method.rel_pos(torch.tensor(q_pos), torch.tensor(k_pos)).tolist()
        for m, row in zip(q_pos, rel, strict=True):
            for n, seen in zip(k_pos, row, strict=True):
                if n <= m:
                    expected = rule(m, n)
                    assert abs(Fraction(seen) - expected) <= tolerance * expected, (m, n, seen, expected)


def causal_rows(method, n_tokens):
    """List for each query of `n_tokens` tokens the relative positions of the keys that it sees."""
    ids = torch.arange(n_tokens)
    return [row[: m + 1] for m, row in enumerate(method.rel_pos(ids, ids).tolist())]


def plain_rows(n_tokens):
    """List the distances m, m - 1, ..., 0 of each query."""
    return [list(range(m, -1, -1)) for m in range(n_tokens)]
