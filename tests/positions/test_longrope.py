import pytest
import torch

from lab.positions import frequencies

SHORT, LONG = (1.0, 1.05, 1.25, 2.0), (1.0, 1.5, 8.0, 40.0)


def longrope(**parameters):
    given = {"short_factor": SHORT, "long_factor": LONG, "factor": 4.0, "train_len": 100, **parameters}
    return frequencies("longrope", head_dim=8, theta=10000.0, **given)


def test_each_pair_is_divided_by_its_own_factor_by_hand():
    """RoPE's 1, 1/10, 1/100 and 1/1000; 100 tokens are short, 101 are long."""
    short, long = [1.0, 0.1 / 1.05, 0.008, 0.0005], [1.0, 0.1 / 1.5, 0.00125, 0.000025]
    for length, expected in ((None, short), (1, short), (100, short), (101, long), (5000, long)):
        assert longrope(length=length).inv_freq.tolist() == pytest.approx(expected, rel=1e-13)
    for length, expected in ((100, short), (101, long)):
        assert longrope().at_length(length).inv_freq.tolist() == pytest.approx(expected, rel=1e-13)
    assert longrope(length=7).at_length(500).inv_freq.tolist() == pytest.approx(short, rel=1e-13)


def test_the_logit_factor_by_hand():
    """1 + ln 4 / ln 100 = 1 + 2 ln 2 / (2 ln 10) = 1.301029995663981, at every position; or a factor's square."""
    positions = torch.tensor([0, 5, 5000])
    assert longrope().logit_factor(positions).tolist() == pytest.approx([1.301029995663981] * 3, rel=1e-14)
    assert longrope(attention_factor=1.19).logit_factor(positions).tolist() == pytest.approx([1.19**2] * 3, rel=1e-14)
    assert longrope(factor=1.0).logit_factor(positions).tolist() == [1.0] * 3
