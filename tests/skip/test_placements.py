"""The ids of each skip method, and sentences, in small cases, of which every outcome is worked by hand."""

import collections
import itertools

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from lab.core.errors import ConfigError
from lab.data.selecting import choose_sentences, sentence_ends, split_sentences
from lab.skip import SKIP_METHODS, Pose, skip_positions
from tests.refusals import refused

DRAWS = 3000
DEVIATIONS = 4.0  # standard deviations, of a mean and of chi-square: less than 1 seed in 100, and the seeds are fixed


def rng(seed=0):
    return np.random.default_rng(seed)


def drawn(method, n_tokens, target_len, lengths=None):
    """Draw ids many times from one generator."""
    config, generator = SKIP_METHODS[method](target_len=target_len), rng()
    return [skip_positions(config, n_tokens, sentence_lengths=lengths, generator=generator) for _ in range(DRAWS)]


def check_shares(samples, weights):
    """Compare how often each outcome was drawn with its weight, by chi-square; no other outcome may occur."""
    seen = collections.Counter(tuple(ids.tolist()) for ids in samples)
    assert not seen.keys() - weights.keys(), "ids that are not admissible"
    expected = {ids: weight * len(samples) / sum(weights.values()) for ids, weight in weights.items()}
    chi_square = sum((seen[ids] - mean) ** 2 / mean for ids, mean in expected.items())
    freedom = len(weights) - 1
    assert chi_square <= freedom + DEVIATIONS * (2 * freedom) ** 0.5, f"chi-square {chi_square:.1f} for {freedom}"


HAND = [
    # sentences a, bc, d in T = 6: 6 - 4 + 3 = 5 slots, two of 1 .. 4 beside slot 0: 1 2, 1 3, 1 4, 2 3, 2 4 or 3 4,
    # which are abcd.., abc.d., abc..d, a.bcd., a.bc.d and a..bcd
    pytest.param(
        [1, 2, 1],
        6,
        [(0, 1, 2, 3), (0, 1, 2, 4), (0, 1, 2, 5), (0, 2, 3, 4), (0, 2, 3, 5), (0, 3, 4, 5)],
        id="one_two_one",
    ),
    # two sentences: the second after 0, 1, 2 or 3 free ids, each as likely; the released code would draw 3 most often
    pytest.param([2, 3], 8, [(0, 1, 2, 3, 4), (0, 1, 3, 4, 5), (0, 1, 4, 5, 6), (0, 1, 5, 6, 7)], id="two_sentences"),
    pytest.param([3], 9, [(0, 1, 2)], id="one_sentence"),
    pytest.param([2, 1, 3], 6, [(0, 1, 2, 3, 4, 5)], id="no_free_id"),
]
OUTCOMES = [  # method, tokens, target length, how often their ids should be drawn
    # n = 4: the first chunk has 1 or 2 tokens, (4 + 1) // 2 = 2; T = 5: the skip is 0 or 1, and 0 leaves no gap
    pytest.param("pose", 4, 5, {(0, 1, 2, 3): 2, (0, 2, 3, 4): 1, (0, 1, 3, 4): 1}, id="four_in_five"),
    # n = 3: the first chunk has 1 or 2 tokens; T = 5: the skip is 0, 1 or 2
    pytest.param(
        "pose", 3, 5, {(0, 1, 2): 2, (0, 2, 3): 1, (0, 3, 4): 1, (0, 1, 3): 1, (0, 1, 4): 1}, id="three_in_five"
    ),
    pytest.param("pose", 1, 5, {(0,): 1}, id="one_token_has_no_second_chunk"),
    # every set of ids alike
    *(
        ("rpes", n, T, dict.fromkeys(itertools.combinations(range(T), n), 1))
        for n, T in ((1, 3), (2, 4), (4, 4), (3, 6))
    ),
]


@pytest.mark.parametrize(("lengths", "target_len", "outcomes"), HAND)
def test_sentences_are_placed_by_hand_each_way_as_likely(lengths, target_len, outcomes):
    check_shares(drawn("longrecipe", sum(lengths), target_len, lengths), dict.fromkeys(outcomes, 1))


@pytest.mark.parametrize(("method", "n_tokens", "target_len", "weights"), OUTCOMES)
def test_ids_by_hand_are_drawn_as_often_as_they_should(method, n_tokens, target_len, weights):
    check_shares(drawn(method, n_tokens, target_len), weights)


SELECTED = [
    # two of three sentences of two tokens fit into three: one whole, one cut to its first token
    pytest.param([2, 2, 2], [1, 1, 1], 3, [*itertools.permutations((0, 1, 2))], id="one_is_cut"),
    pytest.param([2, 9, 2], [1, 0, 1], 3, [(2, 0, 1), (1, 0, 2)], id="a_removed_one_is_never_drawn"),
    pytest.param([5, 1], [1, 1], 2, [(2, 0), (1, 1)], id="one_longer_than_the_budget_is_cut"),
    pytest.param([2, 3, 4], [1, 0, 1], 60, [(2, 0, 4)], id="fewer_remain_than_the_budget"),
]


@pytest.mark.parametrize(("lengths", "remaining", "budget", "expected"), SELECTED)
def test_every_draw_by_hand_is_equally_likely(lengths, remaining, budget, expected):
    generator, remains = rng(), np.array(remaining, dtype=bool)
    drawn = [choose_sentences(np.array(lengths), remains, budget, generator) for _ in range(DRAWS)]
    check_shares(drawn, dict.fromkeys(expected, 1))


def test_a_section_has_its_own_target_window():
    ids = skip_positions(Pose(target_len=500), 90, generator=rng(5))
    assert ids.tolist() == skip_positions("pose", 90, target_len=500, generator=rng(5)).tolist()


ROW = "sentence_lengths: must be whole numbers >= 1 that sum to n_tokens="
WRONG = [  # method, tokens, other arguments, the beginning of the line
    ("longrecip", 4, {}, "skip.method=longrecip: unknown method; did you mean longrecipe?"),
    ("xqzw", 4, {}, "skip.method=xqzw: unknown method; use one of: pose, rpes, longrecipe"),
    ("pose", 0, {}, "target_len=8: must be >= n_tokens=0 >= 1"),
    ("rpes", 9, {}, "target_len=8: must be >= n_tokens=9 >= 1"),
    ("pose", 4, {"target_len": None}, "target_len=None: must be "),
    ("longrecipe", 4, {}, ROW),
    *(("longrecipe", 4, {"sentence_lengths": lengths}, ROW) for lengths in ([5, -1], [2, 0, 2], [2, 3], [])),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: f"{case[0]}-{case[3]}"[:60])
def test_wrong_arguments_are_refused(case):
    method, n_tokens, others, line = case
    with refused(line, error=ConfigError):
        skip_positions(method, n_tokens, **{"target_len": 8, "generator": rng(), **others})


def test_sentences_by_hand():
    ends = np.array([True, False, False, True, False])  # ids 0 and 3 hold a mark
    for ids, lengths in (([1, 0, 0, 3, 2], [2, 1, 1, 1]), ([0, 2, 3], [1, 2]), ([], [])):
        split = split_sentences(np.array(ids, dtype=np.uint32), ends)
        assert (split.tolist(), split.dtype) == (lengths, np.int64)


def test_tokens_that_hold_a_mark_end_a_sentence():
    # in byte-level vocabularies a space is written \u0120 and a line break \u010a
    marked = [".", "\u0120?", '!"', "\u010a", "\u010a\u010a\u0120\u0120", ".com", "..."]
    others = ["It", "\u0120,;:", "\u2026", "3"]
    tokenizer = Tokenizer(models.BPE({token: at for at, token in enumerate(marked + others)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    ends = sentence_ends(tokenizer)
    assert ends.dtype == bool
    assert ends.tolist() == [True] * len(marked) + [False] * len(others)
