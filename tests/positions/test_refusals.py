"""Every parameter that a method refuses: each line names the field and its value, the rule, and some remedy."""

import math

import pytest

from lab.errors import ConfigError
from lab.positions import distance, frequencies
from tests.positions.cases import DISTANCES, FREQUENCIES

VALID = FREQUENCIES | DISTANCES
EXTENDED = [method for method in FREQUENCIES if "factor" in FREQUENCIES[method]]
NUMBER, FINITE = "must be a number", "must be finite"
WRONG = [  # method, changed parameters, the fields' rules; ranges alone are tested for every setting of a config
    ("pi", {"factor": 0.5, "train_len": 1.5}, "factor=0.5: must be >= 1", "train_len=1.5: must be a whole number"),
    ("ntk", {"head_dim": 2}, "head_dim=2: must be >= 4"),  # d / (d - 2) divides by zero
    ("dynamic_ntk", {"length": 0}, "length=0: must be >= 1"),
    ("ntk_by_parts", {"beta_fast": 1.0, "beta_slow": 32.0}, "beta_fast=1.0: must be > beta_slow=32.0"),
    ("ntk_by_parts", {"theta": 1.0}, "theta=1.0: must be > 1"),  # all pairs alike
    ("llama3", {"low_freq_factor": 4.0}, "high_freq_factor=4.0: must be > low_freq_factor=4.0"),
    ("longrope", {"train_len": 1}, "train_len=1: must be >= 2"),  # ln 1 = 0 would divide
    ("longrope", {"long_factor": (1.0, 0.0, 1.0, 1.0)}, "long_factor.1=0.0: must be > 0"),
    ("longrope", {"short_factor": (1.0,) * 3}, "short_factor=3 numbers: must be 4, half of head_dim"),
    ("entropy_abf", {"train_len": 1}, "train_len=1: must be >= 2"),  # ln 1 = 0 would divide
    ("string", {"window": 21}, "window=21: must be <= shift=20"),
    ("dca", {"chunk": 11}, "chunk=11: must be <= train_len=10"),
    ("dca", {"chunk": 6, "window": 5}, "window=5: must be <= train_len - chunk = 4"),
    ("dca", {"parts": "intra", "window": 0}, "window=0: would be ignored"),
    ("plain", {"log_n": 1}, "log_n=1: must be >= 2"),  # ln 1 = 0 would divide
]


def build(method, **parameters):
    return (
        distance(method, **parameters) if method in DISTANCES else frequencies(method, **{"head_dim": 8, **parameters})
    )


def quoted(value):
    return f'"{value}"' if isinstance(value, str) else value


def check_refused(method, parameters, *rules):
    """Check that each fault line is `field=value: rule`, perhaps with a reason, and a remedy."""
    with pytest.raises(ConfigError) as caught:
        build(method, **parameters)
    assert len(caught.value.faults) == len(rules), caught.value.faults
    for fault, rule in zip(caught.value.faults, rules, strict=True):
        found, _, remedy = fault.partition(";")
        assert found == rule or found.startswith((f"{rule} ", f"{rule},")), fault
        assert remedy.strip(), fault


@pytest.mark.parametrize("case", WRONG, ids=lambda case: f"{case[0]}-{case[2].partition(':')[0]}")
def test_wrong_parameters_are_refused(case):
    method, changed, *rules = case
    check_refused(method, VALID[method] | changed, *rules)


@pytest.mark.parametrize("method", EXTENDED)
def test_factor_below_one_or_no_number_is_refused(method):
    rules = {0.999: "must be >= 1", -2.0: "must be >= 1", math.nan: FINITE, math.inf: FINITE, "2": NUMBER, True: NUMBER}
    for factor, rule in rules.items():
        check_refused(method, VALID[method] | {"factor": factor}, f"factor={quoted(factor)}: {rule}")


@pytest.mark.parametrize("method", VALID)
def test_every_parameter_that_would_be_ignored_is_named(method):
    rule = "unknown setting"
    check_refused(method, {**VALID[method], "facter": 2.0, "sift": 5}, f"facter=2.0: {rule}", f"sift=5: {rule}")
