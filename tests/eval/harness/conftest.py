import pytest

from tests.eval.harness.parts import subject_of


@pytest.fixture(scope="package")
def subject(run_folder):
    """The small run, opened once."""
    return subject_of(run_folder)
