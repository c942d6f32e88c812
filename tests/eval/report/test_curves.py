"""eval.report: shares by distance, of the methods that are drawn, and of tests that hide several numbers."""

import pytest

from eval.report.curves import by_distance, by_needles, farthest, needle_shares
from eval.report.data import read_runs
from eval.report.figures import frequency
from lab.probe.records import found_by_distance
from tests.eval.report.fakes import PLAIN, evaluate, one, write_fake

FOUR, ONE = "4 numbers in a test", "one number in a test"


def test_tests_of_several_numbers_stand_beside_those_of_one_with_their_recorded_limits(tmp_path):
    cases = [{"distances": [20, 95], "found_each": [True, False]}, {"distances": [22], "found_each": [False]}] * 8
    recorded = found_by_distance(cases, [20, 100], confidence=0.95, seed=0)
    path = write_fake(tmp_path / "a", several=recorded, scores=(0.9, 0.4))
    dca = one(20, 0.7) | {"method": "rope+dca"}  # without tests of several numbers
    evaluate(path, [dca, {"metric": "needles_by_distance", "distance": 60, "score": 0.5, "n": 400, **PLAIN}])
    shown = needle_shares(read_runs([path]))
    found = {(row.tests, row.distance): (row.share, row.n) for row in shown.itertuples()}
    assert found == {(ONE, 20): (0.9, 100), (ONE, 100): (0.4, 100), (FOUR, 20): (0.5, 16), (FOUR, 100): (0.0, 8)}
    limits = shown.set_index(["tests", "distance"])[["low", "high"]]
    assert limits.loc[(FOUR, 20)].tolist() == [recorded[0]["low"], recorded[0]["high"]]


def test_tests_of_several_numbers_are_folded_over_seeds(tmp_path):
    for seed, share in enumerate((0.5, 0.7)):
        several = [{"distance": 20, "n": 10, "found": 10 * share, "score": share, "low": 0.4, "high": 0.8}]
        write_fake(tmp_path / f"a{seed}", seed=seed, several=several)
    shown = needle_shares(read_runs(sorted(tmp_path.iterdir())))
    row = shown[shown["tests"] == FOUR].iloc[0]
    # mean .6, s .14142, n 2: half width 12.7062 * .14142 / sqrt(2) = 1.27; a share lies between 0 and 1
    assert [row["share"], row["low"], row["high"], row["runs"], row["n"]] == pytest.approx([0.6, 0, 1, 2, 20])


def test_runs_without_tests_of_several_numbers_have_no_such_figure(tmp_path):
    assert by_needles(read_runs([write_fake(tmp_path / "a")])) is None


def test_of_many_settings_those_that_reach_farthest_are_drawn(tmp_path):
    pytest.importorskip("altair")
    path, about = write_fake(tmp_path / "a"), {"first_distance": 20, "last_distance": 100, "n": 100}
    reaches = {f"string(shift={shift},window=8)": 40.0 + shift % 48 for shift in (16, 32, 48, 64, 80, 96)}
    reaches |= {"rerope(window=9)": None, "rerope(window=16)": 30.0, "pi(2)+rerope(window=9)": None}
    rows = [one(20, 0.5) | {"method": name if "+" in name else f"rope+{name}"} for name in reaches]
    evaluate(
        path, [*rows, *({"reach": value, **row, **about} for row, value in zip(rows, reaches.values(), strict=True))]
    )
    runs = read_runs([path])
    # shift 32 and 80 reach 72, of which the first is kept
    chosen = ["plain", "pi(2)+rerope(window=9)", "rerope(window=16)", "string(shift=32,window=8)"]
    assert farthest(runs, runs.distances) == chosen
    assert "Of 10 settings, the one of each method" in by_distance(runs).caption
    assert len(runs.distances["method"].unique()) == 10  # the tables have all


def test_positions_that_are_left_out_of_f_are_stated(tmp_path):
    pytest.importorskip("altair")
    small, large = (read_runs([write_fake(tmp_path / str(window), window=window)]) for window in (97, 128))
    assert "Drawn at" not in frequency(small).caption  # 96 positions
    assert frequency(large).caption.endswith("Drawn at 96 of up to 127 positions, equally spaced.")
