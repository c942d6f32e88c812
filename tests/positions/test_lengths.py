"""Lengths at which a method would be ignored: a fault exactly where every distance of the text stays plain."""

import pytest

from lab.positions import distance
from tests.positions.by_definition import causal_rows, plain_rows


@pytest.mark.parametrize(
    ("method", "parameters", "field"),
    [
        ("string", {"shift": 9, "window": 3}, "shift=9"),
        ("string", {"shift": 1, "window": 0}, "shift=1"),
        # the paper's w = c - s keeps all distances below c, so texts of up to c tokens are unchanged
        ("dca", {"train_len": 12}, "chunk=9"),
        ("dca", {"train_len": 12, "chunk": 6, "window": 2}, "chunk=6"),
        ("dca", {"train_len": 12, "chunk": 5, "parts": "intra_inter"}, "chunk=5"),
        ("dca", {"train_len": 12, "chunk": 5, "parts": "intra"}, "chunk=5"),
        ("self_extend", {"group": 2, "window": 9}, "window=9"),
        ("rerope", {"window": 9}, "window=9"),
        ("leaky_rerope", {"window": 9, "leak": 2.0}, "window=9"),
    ],
)
def test_length_is_a_fault_exactly_where_every_distance_stays_plain(method, parameters, field):
    built = distance(method, **parameters)
    ignored = [n for n in range(1, 40) if causal_rows(built, n) == plain_rows(n)]
    faults = {n: built.length_faults(n) for n in range(1, 40)}
    assert [n for n in faults if faults[n]] == ignored
    for n in ignored:
        (fault,) = faults[n]
        assert fault.startswith(f"{field}: ")
        assert "; " in fault
