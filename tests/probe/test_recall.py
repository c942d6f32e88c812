"""Recall against definitions: contexts and distances by brute force, losses of texts alone, gains that are known."""

from collections import Counter

import numpy as np
import pytest
import torch

from lab.evidence.methods import Repeat
from lab.probe.recall import RecallTest
from tests.evidence import brute

WINDOW = 96
EDGES = [16, 32, 64]
LOW, HIGH = 0.5, 2.5  # nats of a target that the copier finds, and of another


class Copier:
    """Finds a target that stands among the last `reach` tokens; keeps the contexts that it has seen, and targets."""

    def __init__(self, reach):
        self.reach = reach
        self.seen = Counter()

    def scores(self, tokens, targets):
        out = torch.zeros(2, *tokens.shape, dtype=torch.float64)
        for row, place in (targets >= 0).nonzero().tolist():
            context = tokens[row, : place + 1].tolist()
            target = int(targets[row, place])
            self.seen[tuple(context), target] += 1
            found = target in context[-self.reach :]
            out[:, row, place] = torch.tensor([LOW if found else HIGH, float(found)])
        return out


def planted(distances, documents=6, copies=4):
    """Make documents of tokens that differ, but for blocks of 3 that come again so far back, each in its own window."""
    fresh = iter(range(1, 10**9))
    texts = []
    for _ in range(documents):
        parts = []
        for d in distances * copies:
            part = [next(fresh) for _ in range(WINDOW)]
            part[WINDOW - 3 :] = part[WINDOW - 3 - d : WINDOW - d]
            parts += part
        texts.append(np.array(parts))
    return texts


def measured(test, model):
    return test.summarize(test.scores(model, test.targets))


@pytest.mark.parametrize(("reach", "gains"), [(50, [2, 2, 0]), (30, [2, 0, 0]), (90, [2, 2, 2]), (10, [0, 0, 0])])
def test_a_copier_of_known_reach(reach, gains):
    # each bin has targets at one distance: 20, 40 and 80 tokens
    bins = measured(RecallTest(planted([20, 40, 80]), Repeat(), WINDOW, EDGES, most=50), Copier(reach))
    assert [row["score"] for row in bins] == [row["low"] for row in bins] == [row["high"] for row in bins] == gains
    assert [(row["distance"], row["last"], row["n"], row["documents"]) for row in bins] == [
        (16, 31, 50, 6),  # of 3 targets in each of 24 blocks
        (32, 63, 50, 6),
        (64, 96, 50, 6),
    ]
    assert [row["middle"] for row in bins] == pytest.approx([20, 40, 80])
    assert [row["right_whole"] for row in bins] == [gain / 2 for gain in gains]
    assert [row["right_cut"] for row in bins] == [0, 0, 0]
    assert [row["nats_cut"] for row in bins] == [HIGH] * 3
    assert [row["share"] for row in bins] == pytest.approx([72 / (72 * WINDOW - 6)] * 3)  # a document's first is none


def test_contexts_by_brute_force():
    """The contexts that the model reads are those of the definition, token by token."""
    generator = np.random.default_rng(0)  # few words repeat blocks at all distances
    documents = [generator.integers(1, 6, size) for size in generator.integers(1, 3 * WINDOW, 5)]
    evidence = Repeat(tokens=4)
    edges = [2, 5, 24]
    candidates = {low: [] for low in edges}
    for ids in documents:
        for begin in range(0, len(ids), WINDOW):
            piece = ids[begin : begin + WINDOW + 1].tolist()
            for place in range(1, len(piece)):
                d = brute.repeat(piece, place, 4)
                if d >= 2:
                    low = max(edge for edge in edges if edge <= d)
                    between = [piece[q] for q in range(place) if q > place - d]
                    candidates[low] += [((tuple(piece[:place]), piece[place]), (tuple(between), piece[place]))]
    contexts = Counter(context for pairs in candidates.values() for pair in pairs for context in pair)
    every = RecallTest(documents, evidence, WINDOW, edges, most=10**6)
    copier = Copier(WINDOW)
    every.scores(copier, every.targets)
    assert min(map(len, candidates.values())) > 8
    assert copier.seen == contexts
    few = RecallTest(documents, evidence, WINDOW, edges, most=8)
    assert Counter(target.bin for target in few.targets) == {0: 8, 1: 8, 2: 8}
    copier = Copier(WINDOW)
    few.scores(copier, few.targets)
    assert not copier.seen - contexts


def test_limits_are_over_documents():
    """Of two documents, one with a gain of 2 and one without, a quarter of the draws have none and a quarter all."""
    test = RecallTest(planted([20, 40], documents=2), Repeat(), WINDOW, EDGES, most=50)
    scores = np.array([[HIGH - 2 * target.document, 0, HIGH, 0] for target in test.targets])
    assert [(row["score"], row["low"], row["high"]) for row in test.summarize(scores)] == [(1, 0, 2)] * 2


@pytest.mark.parametrize(
    "documents", [[], [np.arange(1)], planted([20, 40], documents=1), [np.arange(900)] * 3], ids=len
)
def test_too_little_text_has_none(documents):
    test = RecallTest(documents, Repeat(), WINDOW, EDGES, most=50)
    assert test.targets == []
    assert measured(test, Copier(9)) == []
