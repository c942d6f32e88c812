from dataclasses import dataclass

import pytest

from lab.errors import ConfigError
from lab.schema import Section
from lab.settings import Raw, validated
from lab.skip.longrecipe import LongRecipe
from lab.skip.methods import SkipConfig
from lab.skip.pose import Pose
from lab.skip.rpes import Rpes
from tests.data.stores import refused


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
        ({"method": "longrecip", "target_len": 9}, "skip.method=longrecip: unknown; did you mean longrecipe?"),
        ({"method": "pose", "target_len": 0}, "skip.target_len=0: must be >= 1; "),
        ({"method": "pose"}, "skip.target_len: must be set; "),
        ({"method": "rpes", "target_len": 9, "chunks": 3}, "skip.chunks=3: unknown setting; "),
    ],
)
def test_a_wrong_setting_is_one_line(settings, line):
    with refused(line, ConfigError):
        read(**settings)
