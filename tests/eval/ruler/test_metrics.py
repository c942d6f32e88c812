"""RULER's scores, averages and effective length by hand."""

import pandas as pd
import pytest

from eval.ruler.tasks import TASKS, all_parts, any_part, averages, effective_length, wilson_interval

CASES = [  # answer, expected, all parts, any part
    pytest.param("12345678", ["1234567"], 1.0, 1.0, id="inside_a_longer_number"),
    pytest.param("11 and 33", ["11", "22", "33", "44"], 0.5, 1.0, id="half"),
    pytest.param("11 11 11", ["11", "22", "33"], 1 / 3, 1.0, id="repeats_count_once"),
    pytest.param("abcde FGHIJ", ["ABCDE", "fghij"], 1.0, 1.0, id="case"),
    pytest.param("In Normandy, France", ["France", "france", "in France"], 2 / 3, 1.0, id="one_of_three"),
    pytest.param("Denver", ["Denver Broncos", "The Denver Broncos"], 0.0, 0.0, id="a_part_of_the_expected"),
]


@pytest.mark.parametrize(("answer", "expected", "every", "one"), CASES)
def test_scores(answer, expected, every, one):
    assert all_parts(answer, expected) == pytest.approx(every, abs=1e-15)
    assert any_part(answer, expected) == one


def test_partial_scores_widen_wilsons_interval_to_whole_sums():
    """A sum of 2 1/3 lies between 2 and 3 of 4; thirds that add up to 2 are 2, whatever the rounding."""
    whole = [wilson_interval([1.0] * k + [0.0] * (4 - k)) for k in (2, 3)]
    assert wilson_interval([1.0, 1.0, 1 / 3, 0.0]) == (whole[0][0], whole[1][1])
    assert wilson_interval([1 / 3] * 3 + [1.0]) == whole[0]
    # none and all of 20: 0 and z^2 / (20 + z^2) = 3.841459 / 23.841459, with z of 95%, and from 1 less that to 1
    assert wilson_interval([0.0] * 20) == (0.0, pytest.approx(0.161125, abs=1e-6))
    assert wilson_interval([1.0] * 20) == (pytest.approx(0.838875, abs=1e-6), 1.0)


# niah 8 x 90, vt 60, cwe 40, fwe 80, qa 30 and 50: retrieval 90, tracing 60, aggregation 60, answering 40;
# average (720 + 60 + 40 + 80 + 30 + 50) / 13 = 980 / 13
ROW = {"vt": 60.0, "cwe": 40.0, "fwe": 80.0, "qa_1": 30.0, "qa_2": 50.0}


def frame(scores):
    return pd.DataFrame([(*cell, score) for cell, score in scores.items()], columns=["task", "length", "score"])


def test_categories_weigh_their_tasks_alike_and_the_average_all_13():
    scores = frame({(task.name, 4096): ROW.get(task.name, 90.0) for task in TASKS.values()})
    means = averages(scores)[4096]
    assert list(means.index) == ["retrieval", "multi-hop tracing", "aggregation", "question answering", "average"]
    assert means.tolist() == pytest.approx([90, 60, 60, 40, 980 / 13])


def test_the_effective_length_ends_before_the_first_length_below():
    for reached, curve in (
        (16384, {4096: 90, 8192: 86, 16384: 85.6, 32768: 85.5}),
        (0, {4096: 85.5, 8192: 99}),
        (4096, {16384: 90, 8192: 80, 4096: 90}),
        (131072, {4096: 100, 131072: 100}),
    ):
        means = averages(frame({("vt", length): score for length, score in curve.items()}))
        assert effective_length(means) == reached
