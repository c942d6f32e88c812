"""Lengths at which a method would be ignored: a fault exactly where every distance of the text stays plain."""

import pytest

from lab.positions import distance
from tests.positions.by_definition import causal_rows, plain_rows


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        pytest.param("string", {"shift": 9, "window": 3}, id="string"),
        pytest.param("string", {"shift": 1, "window": 0}, id="string_least_shift"),
        # the paper's w = c - s keeps all distances below c, so texts of up to c tokens stay as they are
        pytest.param("dca", {"train_len": 12}, id="dca"),
        pytest.param("dca", {"train_len": 12, "chunk": 6, "window": 2}, id="dca_narrow_window"),
        pytest.param("dca", {"train_len": 12, "chunk": 6, "window": 0}, id="dca_without_window"),
        pytest.param("self_extend", {"group": 2, "window": 9}, id="self_extend"),
        pytest.param("self_extend", {"group": 5, "window": 9}, id="self_extend_wide_groups"),
        pytest.param("rerope", {"window": 9}, id="rerope"),
        pytest.param("rerope", {"window": 0}, id="rerope_without_window"),
        pytest.param("leaky_rerope", {"window": 9, "leak": 2.0}, id="leaky_rerope"),
        pytest.param("leaky_rerope", {"window": 9, "leak": 1.01}, id="leaky_rerope_hardly"),
    ],
)
def test_length_is_a_fault_exactly_where_every_distance_stays_plain(method, parameters):
    built = distance(method, **parameters)
    ignored = [n for n in range(1, 40) if causal_rows(built, n) == plain_rows(n)]
    assert [n for n in range(1, 40) if built.config.length_faults(n)] == ignored


@pytest.mark.parametrize("length", [1, 2, 10**6])
def test_plain_distance_fits_every_length(length):
    assert distance("plain").config.length_faults(length) == []
