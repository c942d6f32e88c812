import pytest

from lab.errors import ConfigError
from lab.positions import DISTANCE_METHODS, FREQUENCY_METHODS, distance, frequencies
from tests.positions.cases import DISTANCES, FREQUENCIES


def frequency_of(method, **parameters):
    return frequencies(method, head_dim=8, **parameters)


@pytest.mark.parametrize(
    ("build", "fault", "remedy"),
    [
        (frequency_of, "frequency.method=rpoe", "rope"),
        (distance, "distance.method=plian", "plain"),
        (frequency_of, "frequency.method=xqzw", ", ".join(FREQUENCY_METHODS)),
        (distance, "distance.method=xqzw", ", ".join(DISTANCE_METHODS)),
    ],
)
def test_unknown_method_is_answered_with_the_nearest_or_with_every_name(build, fault, remedy):
    with pytest.raises(ConfigError, match=f"^{fault}: unknown method; .*{remedy}"):
        build(fault.partition("=")[2])


def test_methods_have_the_names_that_other_programs_rely_on():
    assert [*FREQUENCY_METHODS] == [*FREQUENCIES]
    assert [*DISTANCE_METHODS] == [*DISTANCES]
