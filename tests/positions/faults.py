"""What the refusals of the method files share: the text of an error, and the factors that no method takes."""

import pytest

from lab.errors import ConfigError


def fault_of(build, *names, **parameters):
    """Build what must be refused and return the whole text of the refusal."""
    with pytest.raises(ConfigError) as caught:
        build(*names, **parameters)
    return str(caught.value)


wrong_factor = pytest.mark.parametrize(
    ("factor", "rule"),
    [
        pytest.param(0.999, "must be >= 1", id="below_one"),
        pytest.param(0, "must be >= 1", id="zero"),
        pytest.param(-2.0, "must be >= 1", id="negative"),
        pytest.param(float("nan"), "must be finite", id="nan"),
        pytest.param(float("inf"), "must be finite", id="infinite"),
        pytest.param("2", "must be a number", id="text"),
        pytest.param(True, "must be a number", id="true"),
    ],
)
