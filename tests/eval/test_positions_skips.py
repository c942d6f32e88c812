"""Tables by hand where the ids leave no choice, measures of ids that are given, and drawn ones against theory."""

import numpy as np
import pytest

from eval.positions import SkipOptions, drawn_sentences, main, measure, samples
from lab.skip.methods import Rpes
from tests.eval.commands import runner, words_of

SHARE_TOL = 0.01  # f(i) / f(0) of one sample deviates by 0.03, that of the mean of 200 by 0.002

# 4 tokens in 4 ids leave no choice: the pairs are 1 1 1 2 2 3 apart, 10 / 6 in the mean; f = 4 3 2 1
FULL = "1.7 4.00 3 75% 50% 25%"
# one sentence goes on without a gap: f(8) and f(16) / 4 over ids 0 .. 3 and 0 .. 31, (32 - i) / 32 of these
GAPLESS = ["1.7 4.00 3 0% 0% 0%", "1.7 4.00 3 0% 0% 0%", "11.0 32.00 31 75% 50% 25%"]
TABLES = {  # words, and the table below its heading, without names
    "pose --n_tokens=4 --target_len=4": [FULL, FULL],
    "rpes --n_tokens 4 --target_len 4 --samples 7 --seed 3": [FULL, FULL],
    "longrecipe --n_tokens=4 --target_len=32 --sentence_tokens=1e9 --samples=2": GAPLESS,
}


run = runner(main)


@pytest.mark.parametrize(("words", "table"), TABLES.items(), ids=TABLES)
def test_ids_that_leave_no_choice_are_measured_by_hand(capsys, words, table):
    status, out, err = run(words, capsys)
    assert (status, err) == (0, "")
    assert [" ".join(line[-6:]) for line in words_of(out.split("\n\n")[1])[1:]] == table


def test_given_samples_are_measured_together():
    # ids 0 1 5 6: pairs 1 5 6 4 5 1 apart, 22 / 6; f = 4 2 0 0 1 2 1 0; runs of 2 and 2
    # ids 0 1 2 3: 10 / 6; f = 4 3 2 1; one run of 4
    row, shares = measure([np.array([0, 1, 5, 6]), np.arange(4)], 8)
    assert row["mean_distance"] == pytest.approx((22 / 6 + 10 / 6) / 2, rel=1e-12)
    assert row["mean_run_length"] == pytest.approx((2 + 2 + 4) / 3, rel=1e-12)
    assert row["largest"] == 6
    np.testing.assert_allclose(shares, np.array([8, 5, 2, 1, 1, 2, 1, 0]) / 8, rtol=1e-12)


def test_random_ids_have_the_distances_of_theory():
    # an id i below a taken one exists for T - i of T, and is taken with probability (n - 1) / (T - 1)
    i = np.arange(1, 1024)
    _, shares = measure(samples(Rpes(target_len=1024), SkipOptions(n_tokens=256, samples=200)), 1024)
    np.testing.assert_allclose(shares[1:], (1024 - i) / 1024 * 255 / 1023, atol=SHARE_TOL)


def test_sentences_fill_the_sample_and_are_geometric():
    generator = np.random.default_rng(0)
    drawn = [drawn_sentences(500, 5.0, generator) for _ in range(200)]
    assert {int(lengths.sum()) for lengths in drawn} == {500}
    whole = np.concatenate([lengths[:-1] for lengths in drawn])  # the sample's end cuts the last
    share = np.bincount(whole, minlength=8)[:8] / len(whole)
    # 1/5, 4/5 of it, ... : some 20,000 lengths, so that shares deviate by 0.003
    np.testing.assert_allclose(share[1:], 0.2 * 0.8 ** np.arange(7), atol=0.012)
    assert share[0] == 0
