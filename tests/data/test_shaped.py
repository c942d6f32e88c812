"""Loss weights as planned; targets by visible context against every segment."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from lab.data.config import DataConfig
from lab.data.module import arrangement_of, to_batch
from lab.data.packing import weigh_by_context
from lab.data.segments import index_segments
from lab.data.shaped import plan_for, target_counts
from lab.errors import ConfigError
from lab.masks import Causal, Document
from lab.shape import ByContext, Exact, Power
from tests.data.stores import make_store, numbered_documents, stream_over
from tests.data.windows import IGNORE

WINDOW = 24
SETTINGS = {"natural": Causal(), "concatenated": Causal(), "concatenated_document": Document()}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    lengths = (np.random.default_rng(0).lognormal(2.3, 1.0, 400).astype(int) + 1).tolist()
    documents = numbered_documents([24, 48, 1, *lengths])  # some that end where windows do
    return make_store(tmp_path_factory.mktemp("store"), [documents[:90], documents[90:91], documents[91:]], 1_000_000)


@pytest.mark.parametrize("target", [Power(exponent=0.7), Exact()], ids=["power", "exact"])
@pytest.mark.parametrize("name", SETTINGS)
def test_an_epoch_has_the_planned_profile_and_a_mean_weight_of_1(store, name, target):
    mode, mask = name.partition("_")[0], SETTINGS[name]
    data = DataConfig(window=WINDOW, mode=mode)
    plan = plan_for(ByContext(target=target), data, store, mask)
    pairs, total, expected = np.zeros(WINDOW), 0.0, np.zeros(WINDOW, dtype=np.int64)
    segments = index_segments(store, mode, WINDOW)
    packs = stream_over(store, segments, pack_tokens=WINDOW, arrangement=arrangement_of(data, mask))
    for pack in itertools.islice(packs, segments.n):  # every segment once, one a pack
        weighed = replace(pack, weights=weigh_by_context(plan.weights, pack))
        weights, place = to_batch(weighed)["weights"][0].tolist(), 0
        for length in pack.lengths:
            for context in range(length):
                assert (weights[place] > 0) == (pack.targets[place] != IGNORE)
                expected[context] += pack.targets[place] != IGNORE
                pairs[: context + 1] += weights[place]  # one pair at each distance 0 .. context
                place += 1
        total += sum(weights)
    assert target_counts(store, mode, WINDOW, mask.method).tolist() == expected.tolist()
    assert total / expected.sum() == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(pairs[1:] / pairs[1:].sum(), plan.reached, atol=1e-7)


def test_a_corpus_without_targets_is_refused(tmp_path):
    store = make_store(tmp_path, [numbered_documents([1] * 9)])
    with pytest.raises(ConfigError, match="^weights.by=context: the corpus has no targets"):
        target_counts(store, "natural", WINDOW, "causal")
