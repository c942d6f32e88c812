from lab.positions import DISTANCE_METHODS, FREQUENCY_METHODS
from tests.positions.cases import DISTANCES, FREQUENCIES


def test_methods_have_the_names_that_other_programs_rely_on():
    assert [*FREQUENCY_METHODS] == [*FREQUENCIES]
    assert [*DISTANCE_METHODS] == [*DISTANCES]
