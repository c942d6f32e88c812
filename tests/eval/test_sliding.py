"""Sliding-window losses against hand-worked windows, models with known losses, and a loop that calls the model."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch

from eval.engine.sliding import TextLosses, text_losses, windows
from lab.core.types import IGNORE


@pytest.mark.parametrize("n_tokens", [2, 3, 12, 13, 14, 41])
def test_each_token_is_scored_once_with_enough_in_sight(n_tokens):
    for context, stride in itertools.combinations(range(13, 0, -1), 2):
        sight = {}
        for begin, end, first in windows(n_tokens, context, stride):
            assert end - begin <= context
            for token in range(first, end):
                assert token not in sight
                sight[token] = token - begin
        assert sorted(sight) == list(range(1, n_tokens))
        for token, seen in sight.items():
            assert seen == token if token < context else context - stride <= seen < context


def model_of(table):
    """Make a model whose prediction depends on the last token alone; table[a][b] is p(b | a)."""
    probabilities = torch.tensor(table, dtype=torch.float64)

    def score(tokens, targets):
        losses = -probabilities[tokens, targets.clamp_min(0)].log()
        return losses * (targets != IGNORE)

    return score


def test_a_bigram_model_by_hand():
    # p(b | a): 0 1 0 0 1 has steps 01, 10, 00, 01 of 3/4, 1/2, 1/4, 3/4: product 9/128; 1 1 has 1/2
    table = [[0.25, 0.75], [0.5, 0.5]]
    texts, cut = [np.array([0, 1, 0, 0, 1]), np.array([1, 1])], partial(windows, context=3, stride=1)
    losses = text_losses(model_of(table), texts, cut, rows=2)
    assert losses.nll.tolist() == pytest.approx([math.log(128 / 9), math.log(2)])
    assert losses.tokens.tolist() == [4, 1]
    assert losses.perplexity == pytest.approx((256 / 9) ** (1 / 5))
    # disjoint windows of 2 see the steps 01 and 00 alone: 3/4 * 1/4
    losses = text_losses(model_of(table), texts[:1], partial(windows, context=2, stride=2), rows=2)
    assert (losses.tokens.tolist(), losses.nll.tolist()) == ([2], [pytest.approx(math.log(16 / 3))])


def test_limits_of_unequal_texts_by_hand():
    # nll 3, 1 over 1, 3 tokens: loss 1; residuals 3 - 1, 1 - 3; se^2 = 2 * 8 / 16; t_1 = 12.7062
    losses = TextLosses(np.array([3.0, 1.0]), np.array([1, 3]))
    assert [math.log(limit) for limit in losses.limits] == pytest.approx([1 - 12.7062, 1 + 12.7062], rel=1e-5)
    assert TextLosses(np.array([3.0]), np.array([2])).limits is None
