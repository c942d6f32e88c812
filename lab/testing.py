"""Tests of your own methods: properties that every method of a type has.

    from lab.testing import check_distance_method
    check_distance_method(MyMethod, window=4)

Each check builds the class from parameters, as a config does. It raises an AssertionError with the error, or a
ConfigError for parameters that the class rejects. The lab's own methods pass these checks in its tests. Hand-worked
values of the equation remain yours to test.
"""

from itertools import islice

import numpy as np
import torch
from torch import Tensor

from lab.core.schema import validated
from lab.core.types import IGNORE, IntArray
from lab.data.config import OwnCorpus
from lab.evidence.methods import Evidence
from lab.masks import Arrangement, WindowMask
from lab.positions import Distance, FrequencyMethod
from lab.skip import Skip

N_TOKENS = 90  # of a text
SIZES = ((4, 10_000.0), (64, 10_000.0), (128, 500_000.0), (32, 100.0))  # head_dim and rotary base
SEEDS = range(20)


def check_shape(name: str, x: Tensor | IntArray, dtype: str, shape: tuple[int, ...]) -> None:
    assert (str(x.dtype).removeprefix("torch."), x.shape) == (dtype, shape), f"{name} must be {dtype} of shape {shape}"


def check_distance_method(method: type[Distance], **parameters: object) -> None:
    """Check a distance method's map and its bands, by which attention runs, for texts of N_TOKENS."""
    built = validated(method, parameters)
    ids = torch.arange(N_TOKENS)
    # No query, no key, and one of each: a map must keep its shape and type there.
    for q_pos, k_pos in ((ids[:0], ids), (ids, ids[:0]), (ids[:1], ids[:1])):
        check_shape("rel_pos", built.rel_pos(q_pos, k_pos), "float64", (len(q_pos), len(k_pos)))
    for start in (0, 1, 13):
        check_bands(built, ids + start)


def check_bands(built: Distance, ids: Tensor) -> None:
    """Check that each causal pair is in one band, or hidden, and that the band's maps give its relative position."""
    rel_pos = built.rel_pos(ids, ids)
    m, n = ids[:, None], ids[None, :]
    seen = (n <= m) & built.visible_pairs(m, n)
    times = torch.zeros_like(rel_pos, dtype=torch.int64)
    for number, band in enumerate(built.bands):
        inside = (n <= m) & band.region.contains(m, n)
        times += inside
        distances = (band.q_map(m) - band.k_map(n)).double()
        wrong = inside & ~((distances - rel_pos).abs() <= 1e-12)  # in float64, of positions below 10^3
        assert not wrong.any(), f"band {number} differs from rel_pos at query and key {wrong.nonzero()[0].tolist()}"
    several = (times != seen.long()).nonzero()
    assert len(several) == 0, f"query and key {several[0].tolist()} must lie in one band, or be hidden"


def check_frequency_method(method: type[FrequencyMethod], **parameters: object) -> None:
    """Check the inverse frequencies at several sizes of heads, and the factor on the logits."""
    built = validated(method, parameters)
    for head_dim, theta in SIZES:
        inv_freq = built.inv_freq(head_dim, built.base(theta))
        check_shape("inv_freq", inv_freq, "float64", (head_dim // 2,))
        falls = inv_freq.isfinite().all() and (inv_freq >= 0).all() and (inv_freq.diff() < 0)[inv_freq[:-1] > 0].all()
        assert falls, f"inv_freq must be finite, >= 0 and fall from pair to pair: {inv_freq.tolist()}"
    for q_pos in (torch.arange(0), torch.tensor([5]), torch.tensor([[0, 1], [4, 100_000]])):
        factor = built.logit_factor(q_pos, 0)
        check_shape("logit_factor", factor, "float64", q_pos.shape)
        assert built.scales_logits or (factor == 1).all(), "logit_factor must be 1, or scales_logits must be True"


def check_mask(method: type[WindowMask], **parameters: object) -> None:
    """Compare what training makes of windows with `visible`, pair by pair; tokens must be there once, ids rising."""
    built = validated(method, parameters)
    anchored = int(built.is_anchored)  # then token 0, document 0, is the anchor
    for seed in SEEDS:
        generator = np.random.default_rng(seed)
        documents = np.append(0, np.cumsum(generator.random(2 * seed) < 0.2)) + anchored
        index = torch.arange(len(documents) + anchored)
        runs = Arrangement(mask=built, anchor=0).runs(
            index[anchored:].numpy(), index[anchored:].numpy(), documents, generator
        )
        tokens = sorted(np.concatenate([run.tokens for run in runs]))
        assert tokens == index.tolist(), f"tokens must be there once each: {tokens}"
        trained = torch.zeros(len(index), len(index), dtype=torch.bool)
        for run in runs:
            assert (np.diff(run.ids) >= 1).all(), "ids must rise in a run"
            own = torch.from_numpy(run.tokens)
            trained[own[:, None], own] = own[:, None] >= own
            trained[own, 0] |= run.anchored
        docs = torch.from_numpy(np.append([0] * anchored, documents).astype(np.int64))
        wrong = (trained != built.visible(index[:, None], index, docs[:, None], docs)).nonzero().tolist()
        assert not wrong, f"visible differs from what training shows at query and key {wrong[0]}"


def check_skip_method(method: type[Skip], **parameters: object) -> None:
    """Check that ids rise within the target window, and that the generator alone decides them."""
    built = validated(method, parameters)
    for seed in SEEDS:
        n_tokens = 1 + seed * (built.target_len - 1) // (len(SEEDS) - 1)
        sentences = np.ones(n_tokens, np.int64)
        first, again = (built.position_ids(n_tokens, sentences, np.random.default_rng(seed)) for _ in range(2))
        check_shape("ids", first, "int64", (n_tokens,))
        rises = (np.diff(first) >= 1).all() and first[0] >= 0 and first[-1] < built.target_len
        assert rises, f"ids must rise within 0 .. target_len - 1: {first.tolist()}"
        assert (first == again).all(), "equal generators must give equal ids"


def check_evidence_method(method: type[Evidence], **parameters: object) -> None:
    """Check that evidence is in the target's own run, and that a run's evidence does not depend on its pack."""
    built = validated(method, parameters)
    for seed in SEEDS:
        generator = np.random.default_rng(seed)
        lengths = generator.integers(1, 40, size=4).tolist()
        ends = np.cumsum(lengths)
        tokens = generator.integers(0, 4, size=ends[-1] + 5)  # the last are padding
        targets = np.append(tokens[1:], 0)
        targets[ends - 1] = IGNORE
        distances = built.distances(tokens, targets, lengths)
        check_shape("distances", distances, "int64", tokens.shape)
        assert not distances[ends[-1] :].any(), "padding must have no evidence"
        for run in map(slice, ends - lengths, ends):
            of_run = distances[run]
            inside = (of_run >= 0) & (of_run <= np.arange(1, len(of_run) + 1))
            assert inside.all(), f"evidence must lie in the run: {of_run.tolist()}"
            # A pack's other runs depend on rank and order, and g must not.
            alone = built.distances(tokens[run], targets[run], [len(of_run)])
            assert (of_run == alone).all(), "evidence must not depend on the other runs of a pack"


def check_corpus(corpus: type[OwnCorpus], **parameters: object) -> None:
    """Check that a corpus yields text, the same on every call; of a large one, the first documents."""
    texts, again = ([*islice(validated(corpus, parameters).documents(), 1000)] for _ in range(2))
    assert {*map(type, texts)} == {str}, "a corpus must have documents of text"
    assert texts == again, "documents must be the same on every call"
