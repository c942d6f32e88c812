"""RULER's scores by hand."""

import pytest

from eval.ruler.scores import interval
from eval.ruler.tasks import all_parts, any_part

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


def test_the_interval_solves_its_equation():
    """Both bounds b of Wilson's interval satisfy (mean - b)^2 = z^2 b (1 - b) / n, z = 1.959964."""
    for passed, n in ((1, 2), (3, 10), (77, 500), (499, 500)):
        for bound in interval([1.0] * passed + [0.0] * (n - passed)):
            assert (passed / n - bound) ** 2 == pytest.approx(1.959964**2 * bound * (1 - bound) / n, rel=1e-5)
    # none of 20: 0 and z^2 / (20 + z^2) = 3.841459 / 23.841459
    assert interval([0.0] * 20) == (0.0, pytest.approx(0.161125, abs=1e-6))


def test_partial_scores_widen_the_interval_to_whole_sums():
    """A sum of 2 1/3 lies between 2 and 3 of 4; thirds that add up to 2 are 2, whatever the rounding."""
    whole = [interval([1.0] * k + [0.0] * (4 - k)) for k in (2, 3)]
    assert interval([1.0, 1.0, 1 / 3, 0.0]) == (whole[0][0], whole[1][1])
    assert interval([1 / 3] * 3 + [1.0]) == whole[0]
