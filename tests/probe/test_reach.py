"""Reach: its errors by simulation, values by hand, and one definition for all commands."""

import json

import numpy as np
import pytest
from scipy.stats import binomtest

import lab
from eval.compare import main as compare
from eval.distance import reach_line
from eval.reach import list_reaches
from lab.analysis.table import read_result_table
from lab.probe.limits import LengthResult, share_limits
from lab.probe.reach import effective_lengths, reach, to_curve, with_reach
from tests.eval.commands import runner

DISTANCES = (24, 36, 48, 60, 72, 84, 96, 108, 120, 132, 144, 156, 168, 179)


def curve(found, tests, distances=DISTANCES):
    limits = [share_limits(int(x), tests, 0.95) for x in found]
    return [LengthResult(d, tests, int(x), [], *at) for d, x, at in zip(distances, found, limits)]


@pytest.mark.parametrize("tests", [1, 2, 10, 500])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_the_limits_of_a_share_are_scipys(tests, confidence):
    for passed in {0, 1, tests // 2, tests - 1, tests}:
        expected = binomtest(passed, tests).proportion_ci(confidence, method="exact")
        assert share_limits(passed, tests, confidence) == pytest.approx(tuple(expected), abs=1e-9)


def simulate(shares, tests=64, cases=600, seed=0):
    found = np.random.default_rng(seed).binomial(tests, shares, (cases, len(shares)))
    return [reach(curve(row, tests, DISTANCES[: len(shares)]), 0.8) for row in found]


@pytest.mark.parametrize("tests", [8, 16, 64])
def test_a_share_of_three_quarters_everywhere_has_a_reach_in_at_most_5_of_100_cases(tests):
    values = simulate([0.75] * 14, tests)
    assert np.mean([value["reach"] is not None for value in values]) <= 0.05
    lines = [reach_line({**value, "threshold": 0.8, "f_at_reach": None}) for value in values]
    assert sum(" <24 to " in line for line in lines) >= 0.9 * len(lines), "a range"


@pytest.mark.parametrize("near", [(), (0.95,), (0.95, 0.95)], ids=len)
@pytest.mark.parametrize(("share", "n"), [(0.9, 3), (0.9, 10), (1.0, 1)])
def test_a_near_dip_to_a_half_leaves_a_reach_and_is_named(near, share, n):
    shares = [*near, 0.5, *[share] * n, *[0.3] * (13 - n - len(near))]
    values = simulate(shares)
    last = len(near) + n
    assert np.mean([value["reach"] is None for value in values]) <= 0.05
    inside = [DISTANCES[last] <= (value["reach"] or 0) <= DISTANCES[min(last + 1, 13)] for value in values]
    assert np.mean(inside) >= 0.9
    assert np.mean([DISTANCES[len(near)] in value["dips"] for value in values]) >= 0.95
    assert "; dips below the threshold at " in reach_line({**values[0], "threshold": 0.8, "f_at_reach": 9})


TRUE = {
    "steep": 1 / (1 + np.exp((np.array(DISTANCES) - 110) / 12)),
    "slow": np.linspace(1, 0.4, 14),
    "plateau": np.array([1.0] * 4 + [0.75] * 10),
    "dip": np.array([0.5] + [0.9] * 5 + [0.6] * 8),
    "none": np.array([0.79] * 14),
}


@pytest.mark.slow
@pytest.mark.parametrize("shares", TRUE.values(), ids=TRUE)
def test_limits_hold_the_true_reach(shares):
    """The last crossing of the true curve on linear joins; a curve that is nowhere above has none."""
    (last,) = np.flatnonzero(shares >= 0.8)[-1:] if (shares >= 0.8).any() else (None,)
    true = 0.0
    if last is not None:
        fall = (shares[last] - 0.8) / (shares[last] - shares[last + 1])
        true = DISTANCES[last] + fall * (DISTANCES[last + 1] - DISTANCES[last])
    values = simulate(shares, cases=2000)
    held = [(v["reach_low"] or 0) <= true + 0.05 and true - 0.05 <= (v["reach_high"] or np.inf) for v in values]
    assert np.mean(held) >= 0.95


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # 1 from 36 to 60, .4 at 72, crossed a third of the way; 30 of 30 show .8 (.8^30 = .0012 < .02 / 5), 20 do not
        pytest.param((5, 10, 10, 10, 4), (64.0, 36.0, []), id="dip_of_few_tests"),
        # the upper limit of 1 of 10 is .445: a dip
        pytest.param((1, 10, 10, 10, 4), (64.0, 36.0, [24]), id="dip"),
        # .4 and 1 twice: the farther stretch counts, from 1 at 96 to .2 at 108 a quarter of the way
        pytest.param((10, 10, 10, 1, 10, 10, 10, 2), (99.0, 72.0, [60]), id="stretch_beyond_a_dip"),
        pytest.param((8, 8, 8, 8, 8), (None, None, []), id="exactly_the_threshold_of_few_tests"),
    ],
)
def test_reach_by_hand(found, expected):
    values = reach(curve(found, 10, DISTANCES[: len(found)]), 0.8)
    assert (values["reach"], values["reach_low"], values["dips"]) == expected


@pytest.mark.parametrize(
    ("found", "threshold", "expected"),
    [  # upper limits of 10, 9, 6, 4, 2, 1, 0 of 10: 1, 0.998, 0.878, 0.738, 0.556, 0.445, 0.308; lower one of 10: 0.692
        pytest.param((10, 10, 6, 2), 0.8, (50.0, None, 64.9), id="between"),  # 60 + 20 (0.878 - 0.8) / (0.878 - 0.556)
        pytest.param((10, 10, 0, 0), 0.6, (48.0, 42.6, 51.6), id="all_limits"),
        pytest.param((2, 9, 1, 0), 0.8, (None, None, 47.1), id="below_at_first"),
        pytest.param((10, 9, 9, 10), 0.8, (80.0, None, None), id="to_the_end"),
    ],
)
def test_limits_of_reach_by_hand(found, threshold, expected):
    values = reach(curve(found, 10, (20, 40, 60, 80)), threshold)
    assert (values["reach"], values["reach_low"], values["reach_high"]) == expected


def test_a_lower_limit_does_not_rise_again():
    """Those of 10, 8, 9 and 6 of 10 are .692, .444, .555 and .262: at 60 it stays .444."""
    values = effective_lengths(curve((10, 8, 9, 6), 10, (20, 40, 60, 80)), 0.3)
    assert values["smooth_low"] == 75.9  # 60 + 20 (.444 - .3) / (.444 - .262)


def test_neighbours_are_not_joined_to_exactly_the_threshold():
    """1 at four distances and .75 at ten pool to .82: reach is near the fourth, 60, and not at the end."""
    assert 60 < reach(curve([64] * 4 + [48] * 10, 64), 0.8)["reach"] < 72
    assert reach(curve([780] * 3, 1000, DISTANCES[:3]), 0.8)["reach"] is None, "more than .75, and yet below"


@pytest.mark.parametrize(("found", "expected"), [((0, 0, 9, 9, 0), (84.0, None)), ((0, 0, 0, 9, 9, 0), (None, 100))])
def test_a_reach_that_fewer_than_half_of_the_distances_up_to_it_pass_is_not_determined(found, expected):
    """Two of four pass and two of five do; reach would be where 1 falls to .8 on the way to 0."""
    values = reach(curve([50 * k // 9 for k in found], 50, (20, 40, 60, 80, 100, 102)), 0.8)
    assert (values["reach"], values["best_distance"]) == expected
    assert reach(curve([50 * k // 9 for k in found], 50, (20, 40, 60, 80, 100, 102)), 0.8, 0.0)["reach"] is not None


def test_every_command_reads_an_older_record_by_this_definition(tmp_path, capsys):
    """.2 at 24 and 1 from 36 to 60: a non-increasing fit begins at .8, and with .1 at none; here it is 60 + 12 / 4."""
    about = {"model": "m", "method": "rope+plain", "consumed_tokens": 7, "confidence": 0.95, "seed": 0}
    rows = [
        {**about, "metric": "found_by_distance", "distance": d, "n": 64, "found": n, "score": n / 64, "f": 100 - d}
        for d, n in zip(DISTANCES, (6, 64, 64, 64, 13), strict=False)
    ]
    stale = {"reach": None, "reach_low": None, "reach_high": 72.0, "first_distance": 24, "last_distance": 72}
    rows.append({**about, "metric": "reach", "threshold": 0.8, "n": 64, "f_at_reach": None, **stale})
    run = tmp_path / "m"
    (run / "eval").mkdir(parents=True)
    (run / "config.yaml").write_text("data: {window: 192}\nrun: {seed: 0, name: m}\n")
    (run / "eval/distance-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {**about, **stale, "effective_length": None, "threshold": 0.8}
    probes = [{k: v for k, v in row.items() if k != "metric"} for row in rows[:-1]] + [summary]
    (run / "probes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in probes))
    value = 60 + 12 * 0.2 / (1 - 13 / 64)
    own = lab.open_run(run).probes().to_dict("records")
    found = [next(row for row in with_reach(rows) if "reach" in row), *own]
    for each in found:
        assert (each["reach"], each["dips"]) == (pytest.approx(value, abs=0.05), [24])
    assert found[0]["f_at_reach"] == round(100 - value)
    (run / "probes.jsonl").unlink()
    table = read_result_table([run])
    assert list_reaches(table, str(run))[0]["reach"] == found[0]["reach"]
    assert runner(compare)([run], capsys)[1].count("63 (62.1 to 63.5), n=64, a dip") == 1


def outcomes(shares, half_width):
    found = [(128 * k, 10, 10 * share, [], share - half_width, share + half_width) for k, share in enumerate(shares, 1)]
    return [LengthResult(*one) for one in found]


def test_the_fit_is_pooled_by_tests():
    results = [LengthResult(128, 30, 15, [], 0, 1), LengthResult(256, 10, 10, [], 0, 1)]
    assert to_curve(results).fit().tolist() == pytest.approx([0.625, 0.625])


def test_effective_lengths_by_hand():
    values = effective_lengths(outcomes([0.75, 1.0, 0.9, 0.3, 0.1], 0.1), 0.8)
    # fit 0.875 0.875 0.9 -> 0.883 three times, then 0.3: crossed (0.8833 - 0.8) / 0.5833 = 1/7 of the way from 384
    # lower curve 0.65 ...: below at once; upper curve 1, 1, 1, 0.4, 0.2: crossed a third of the way from 384
    expected = {"threshold": 0.8, "effective_length": None, "first_length": 128, "last_length": 640}
    expected |= {"low": 0, "high": 384, "smooth": 402.3, "smooth_low": 0.0, "smooth_high": 426.7}
    assert values == expected


def test_limits_are_open_where_the_last_length_may_pass():
    values = effective_lengths(outcomes([1.0, 0.75], 0.1), 0.8)
    assert (values["effective_length"], values["low"], values["high"], values["smooth_high"]) == (128, 128, None, None)
    assert values["smooth_low"] == 179.2  # the lower limits are .9 and .65: .1 / .25 of the way
    assert effective_lengths(outcomes([1.0, 0.75], 0.01), 0.8)["high"] == 128
