import pytest

from tests.forked import ROOT
from tests.torture.rows import ROWS


@pytest.mark.parametrize("name", sorted({name for _, names in ROWS.values() for name in names}))
def test_a_row_names_tests_that_are_there(name):
    path, _, test = name.partition("::")
    assert f"def {test.partition('[')[0]}" in (ROOT / path).read_text()
