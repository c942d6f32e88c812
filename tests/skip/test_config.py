from dataclasses import dataclass

import pytest

from lab.errors import ConfigError
from lab.schema import Section
from lab.settings import Raw, validated
from lab.skip.config import SkipConfig
from lab.skip.longrecipe import LongRecipe
from lab.skip.pose import Pose
from lab.skip.rpes import Rpes


@dataclass(frozen=True, kw_only=True)
class Holder(Section):
    """A config with a skip section."""

    skip: SkipConfig | None = None
    """Position skip; left out, ids without gaps."""


def read(**skip):
    return validated(Holder, Raw({"skip": skip}, "test")).skip


@pytest.mark.parametrize(
    ("method", "expected"),
    [("pose", Pose(target_len=9)), ("rpes", Rpes(target_len=9)), ("longrecipe", LongRecipe(target_len=9))],
)
def test_the_method_selects_the_section(method, expected):
    assert read(method=method, target_len=9) == expected


def test_a_run_may_do_without():
    assert validated(Holder, Raw({}, "test")).skip is None


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        pytest.param(
            {"method": "longrecip", "target_len": 9},
            "skip.method=longrecip: unknown; did you mean longrecipe?",
            id="near",
        ),
        pytest.param(
            {"method": "pose", "target_len": 0},
            "skip.target_len=0: must be >= 1; Target window T in tokens, which all ids stay below; the paper trains on "
            "samples of 30% of it",
            id="range",
        ),
        pytest.param(
            {"method": "pose"},
            "skip.target_len: must be set; Target window T in tokens, which all ids stay below; the paper trains on "
            "samples of 30% of it",
            id="missing",
        ),
        pytest.param(
            {"method": "rpes", "target_len": 9, "chunks": 3},
            "skip.chunks=3: unknown setting; skip has target_len, method",
            id="unknown",
        ),
    ],
)
def test_a_wrong_setting_is_one_line(settings, line):
    with pytest.raises(ConfigError) as caught:
        read(**settings)
    assert str(caught.value) == line
