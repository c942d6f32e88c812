import pytest

from lab.probe.limits import LengthResult
from lab.probe.reach import effective_lengths, to_curve


def outcomes(shares, tests=None, reach=0.0):
    sizes = tests or [10] * len(shares)
    return [
        LengthResult(128 * (k + 1), n, share * n, [], max(0.0, share - reach), min(1.0, share + reach))
        for k, (n, share) in enumerate(zip(sizes, shares, strict=True))
    ]


def test_the_fit_is_pooled_by_tests():
    shares = to_curve(outcomes([0.5, 1.0, 0.25], [30, 10, 10])).fit()
    assert shares.tolist() == pytest.approx([0.625, 0.625, 0.25])


def test_effective_lengths_by_hand():
    values = effective_lengths(outcomes([0.75, 1.0, 0.9, 0.3, 0.1], reach=0.1), 0.8)
    # fit 0.875 0.875 0.9 -> 0.883 three times, then 0.3: crossed (0.8833 - 0.8) / 0.5833 = 1/7 of the way from 384
    # lower curve 0.65 ...: below at once; upper curve 1, 1, 1, 0.4, 0.2: crossed a third of the way from 384
    assert values == {
        "threshold": 0.8,
        "effective_length": None,
        "first_length": 128,
        "last_length": 640,
        "low": 0,
        "high": 384,
        "smooth": 402.3,
        "smooth_low": 0.0,
        "smooth_high": 426.7,
    }


def test_limits_are_open_where_the_last_length_may_pass():
    values = effective_lengths(outcomes([1.0, 0.75], reach=0.1), 0.8)
    assert (values["effective_length"], values["low"], values["high"], values["smooth_high"]) == (128, 128, None, None)
    assert effective_lengths(outcomes([1.0, 0.75], reach=0.01), 0.8)["high"] == 128
