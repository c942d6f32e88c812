"""Tests of your own methods: what a distance method or a mask states in two ways must agree.

    from lab.testing import check_distance_method
    check_distance_method(MyMethod, window=4)

Each check builds the class from parameters, as a config does. It raises an AssertionError with the error, or a
ConfigError for parameters that the class rejects. The lab's own methods pass these checks in its tests. Hand-worked
values of the equation remain yours to test.
"""

import numpy as np
import torch
from torch import Tensor

from lab.core.schema import validated
from lab.masks import Arrangement, WindowMask
from lab.positions import Distance

N_TOKENS = 90  # of a text
SEEDS = range(20)


def check_distance_method(method: type[Distance], **parameters: object) -> None:
    """Check a distance method's map and its bands, by which attention runs, for texts of N_TOKENS."""
    built = validated(method, parameters)
    ids = torch.arange(N_TOKENS)
    # No query, no key, and one of each: a map must keep its shape and type there.
    for q_pos, k_pos in ((ids[:0], ids), (ids, ids[:0]), (ids[:1], ids[:1])):
        rel_pos = built.rel_pos(q_pos, k_pos)
        shape = (len(q_pos), len(k_pos))
        assert (rel_pos.dtype, rel_pos.shape) == (torch.float64, shape), f"rel_pos must be float64 of shape {shape}"
    for start in (0, 1, 13):
        check_bands(built, ids + start)


def check_bands(built: Distance, ids: Tensor) -> None:
    """Check that each causal pair is in one band, or hidden, and that the band's maps give its relative position."""
    rel_pos = built.rel_pos(ids, ids)
    m, n = ids[:, None], ids[None, :]
    seen = (n <= m) & built.visible_pairs(m, n)
    assert rel_pos[seen].isfinite().all(), "rel_pos must be finite where a query sees a key"
    times = torch.zeros_like(rel_pos, dtype=torch.int64)
    for number, band in enumerate(built.bands):
        inside = (n <= m) & band.region.contains(m, n)
        times += inside
        distances = (band.q_map(m) - band.k_map(n)).double()
        wrong = inside & ~((distances - rel_pos).abs() <= 1e-12)  # in float64, of positions below 10^3
        assert not wrong.any(), f"band {number} differs from rel_pos at query and key {wrong.nonzero()[0].tolist()}"
    several = (times != seen.long()).nonzero()
    assert len(several) == 0, f"query and key {several[0].tolist()} must lie in one band, and lie in {times.max()}"


def check_mask(method: type[WindowMask], **parameters: object) -> None:
    """Compare what training makes of windows with `visible`, pair by pair; tokens must be there once, ids rising."""
    built = validated(method, parameters)
    anchored = int(built.is_anchored)  # then token 0, document 0, is the anchor
    for seed in SEEDS:
        generator = np.random.default_rng(seed)
        documents = np.append(0, np.cumsum(generator.random(2 * seed) < 0.2)) + anchored
        tokens = np.arange(len(documents)) + anchored
        runs = Arrangement(mask=built, anchor=0).runs(tokens, tokens, documents, generator)
        order = np.concatenate([run.tokens for run in runs])
        assert sorted(order) == list(range(len(tokens) + anchored)), f"tokens must be there once each: {order}"
        trained = torch.zeros(len(order), len(order), dtype=torch.bool)
        for run in runs:
            assert (np.diff(run.ids) >= 1).all(), "ids must rise in a run"
            index = torch.from_numpy(run.tokens)
            trained[index[:, None], index] = index[:, None] >= index
            trained[index, 0] |= run.anchored
        index, docs = torch.arange(len(order)), torch.from_numpy(np.append([0] * anchored, documents).astype(np.int64))
        wrong = trained != built.visible(index[:, None], index, docs[:, None], docs)
        assert not wrong.any(), (
            f"visible differs from what training shows at query and key {wrong.nonzero()[0].tolist()}"
        )
