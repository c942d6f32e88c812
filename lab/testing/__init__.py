"""Tests of methods of your own: what holds for every method of a kind.

    from lab.testing import check_distance_method
    check_distance_method(MyMethod, window=4)

Each check builds the class from parameters, as a config does, and raises an AssertionError that says what is wrong, or
a ConfigError for parameters that the class refuses. The lab's own methods pass them in its tests. The values of an
equation at hand-worked places are yours to test.
"""

from lab.testing.checks import (
    check_corpus,
    check_distance_method,
    check_evidence_method,
    check_frequency_method,
    check_mask,
    check_skip_method,
    check_softmax,
)

__all__ = [
    "check_corpus",
    "check_distance_method",
    "check_evidence_method",
    "check_frequency_method",
    "check_mask",
    "check_skip_method",
    "check_softmax",
]
