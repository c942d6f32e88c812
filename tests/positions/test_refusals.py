"""What methods reject across parameters, and at their own entry points; ranges are in tests/test_refusals.py."""

import math

import pytest

from lab.core.errors import ConfigError
from lab.positions import distance, frequencies
from tests.positions.cases import DISTANCES, FREQUENCIES
from tests.refusals import refused

VALID = FREQUENCIES | DISTANCES
WRONG = [  # method, changed parameters, a rule for each line
    ("rope", {"head_dim": 7}, "head_dim=7: must be even and >= 2"),
    ("rope", {"head_dim": 0}, "head_dim=0: must be even and >= 2"),
    ("rope", {"theta": 0.0}, "theta=0.0: must be > 0"),
    ("rope", {"theta": math.nan}, "theta=nan: must be > 0"),
    ("pi", {"factor": 0.5, "train_len": 1.5}, "factor=0.5: must be >= 1", "train_len=1.5: must be a whole number"),
    ("ntk", {"head_dim": 2}, "head_dim=2: must be >= 4"),  # d / (d - 2) divides by zero
    ("dynamic_ntk", {"length": 0}, "length=0: must be >= 1"),
    ("ntk_by_parts", {"beta_fast": 1.0, "beta_slow": 32.0}, "beta_fast=1.0: must be > beta_slow=32.0"),
    ("ntk_by_parts", {"theta": 1.0}, "theta=1.0: must be > 1"),  # all pairs alike
    ("llama3", {"low_freq_factor": 4.0}, "high_freq_factor=4.0: must be > low_freq_factor=4.0"),
    ("entropy_abf", {"facter": 2.0, "sift": 5}, "facter=2.0: unknown setting", "sift=5: unknown setting"),
    ("string", {"window": 21}, "window=21: must be <= shift=20"),
    ("dca", {"chunk": 11}, "chunk=11: must be <= train_len=10"),
    ("dca", {"chunk": 6, "window": 5}, "window=5: must be <= train_len - chunk = 4"),
    ("dca", {"parts": "intra", "window": 0}, "window=0: would be ignored"),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: f"{case[0]}-{case[2].partition(':')[0]}")
def test_wrong_parameters_are_refused(case):
    method, changed, *rules = case
    with refused(*rules, error=ConfigError):
        if method in DISTANCES:
            distance(method, **VALID[method] | changed)
        else:
            frequencies(method, **{"head_dim": 8} | VALID[method] | changed)
