"""The worked matrices are those of the methods' files, laid out by hand; the frequencies are counted pair by pair."""

import itertools

import numpy as np
import pytest

from eval.positions import SkipOptions, compute_cells, list_values, main, measure, sample_ids, sample_sentences
from lab.positions import distance
from lab.skip import Rpes
from tests.eval.commands import runner, words_of

MATRIX = """\
0 . . . . .
1 0 . . . .
2 1 0 . . .
1 2 1 0 . .
2 1 2 1 0 .
3 2 1 2 1 0"""
FACTS = [
    ("--shift=3 --window=0", "", 9, 5, 6),
    # arXiv:2410.18745, A.1: [86K + 127, .., 129, 128, 42K - 1, .., 2, 1, 0]
    ("--shift=43008", " --window=128", 131072, 88191, 88192),
]
run = runner(main)


def test_a_short_text_has_its_matrix_printed_whole(capsys):
    status, out, err = run("string --shift=3 --window=1 --length=6", capsys)
    assert (status, err, out.split("\n\n")[0]) == (0, "", MATRIX)


def test_the_matrix_of_a_long_text_is_not_printed(capsys):
    texts = [run(f"string --shift=14 --window=2 --length={n}", capsys)[1].split("\n\n")[0] for n in (40, 41)]
    assert [text.count("\n") for text in texts] == [39, 0]


@pytest.mark.parametrize(("words", "derived", "length", "largest", "distinct"), FACTS)
def test_what_is_in_the_matrix_is_summed_up(capsys, words, derived, length, largest, distinct):
    lines = run(f"string {words} --length={length}", capsys)[1].split("\n\n")[1].splitlines()
    assert lines == [
        f"string {words}{derived} --released_scaling=false",
        f"{length} tokens, {distinct} relative positions, the largest {largest}",
    ]


PARAMETERS = {
    "plain": [{}],
    "string": [{"shift": s, "window": w} for s, w in ((1, 0), (1, 1), (3, 0), (5, 2), (13, 13))],
    "dca": [
        {"train_len": c, "chunk": s, "window": w}
        for c, s, w in ((1, None, None), (10, 6, None), (10, 2, 0), (10, 2, 3), (9, 9, None), (12, 5, 1), (7, None, 0))
    ]
    + [{"train_len": 10, "chunk": 4, "parts": parts} for parts in ("intra_inter", "intra")],
    "self_extend": [{"group": g, "window": w} for g, w in ((1, 4), (2, 4), (3, 4), (4, 3), (5, 0), (3, 7))],
    "rerope": [{"window": w} for w in (0, 1, 6)],
    "leaky_rerope": [{"window": w, "leak": k} for w, k in ((0, 1.0), (4, 2.0), (5, 3.0), (0, 1.7))],
}


@pytest.mark.parametrize("method", PARAMETERS)
def test_first_column_and_last_row_hold_what_the_whole_matrix_holds(method):
    for parameters, length in itertools.product(PARAMETERS[method], (1, 2, 6, 7, 13, 14, 31)):
        one, positions = distance(method, **parameters), np.arange(length)
        whole = compute_cells(one, positions, positions)
        held = whole[np.tril_indices(length)]
        assert list_values(one, length).tolist() == sorted({*held[~np.isnan(held)].tolist()})  # nan: hidden


# 4 tokens in 4 ids leave no choice: the pairs are 1 1 1 2 2 3 apart, 10 / 6 in the mean; f = 4 3 2 1
FULL = "1.7 4.00 3 75% 50% 25%"
# one sentence goes on without a gap: f(8) and f(16) / 4 over ids 0 .. 3 and 0 .. 31, (32 - i) / 32 of these
GAPLESS = ["1.7 4.00 3 0% 0% 0%", "1.7 4.00 3 0% 0% 0%", "11.0 32.00 31 75% 50% 25%"]
TABLES = {  # words, and the table below its heading, without names
    "pose --n_tokens=4 --target_len=4": [FULL, FULL],
    "rpes --n_tokens 4 --target_len 4 --samples 7 --seed 3": [FULL, FULL],
    "longrecipe --n_tokens=4 --target_len=32 --sentence_tokens=1e9 --samples=2": GAPLESS,
}


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
    _, shares = measure(sample_ids(Rpes(target_len=1024), SkipOptions(n_tokens=256, samples=200)), 1024)
    # f(i) / f(0) of one sample deviates by 0.03, that of the mean of 200 by 0.002
    np.testing.assert_allclose(shares[1:], (1024 - i) / 1024 * 255 / 1023, atol=0.01)


def test_sentences_fill_the_sample_and_are_geometric():
    generator = np.random.default_rng(0)
    drawn = [sample_sentences(500, 5.0, generator) for _ in range(200)]
    assert {int(lengths.sum()) for lengths in drawn} == {500}
    whole = np.concatenate([lengths[:-1] for lengths in drawn])  # the sample's end cuts the last
    share = np.bincount(whole, minlength=8)[:8] / len(whole)
    # 1/5, 4/5 of it, ... : some 20,000 lengths, so that shares deviate by 0.003
    np.testing.assert_allclose(share[1:], 0.2 * 0.8 ** np.arange(7), atol=0.012)
    assert share[0] == 0
