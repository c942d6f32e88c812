"""What all methods promise, and how wrong arguments are refused."""

import pytest

from lab.core.errors import ConfigError
from lab.skip import Pose, skip_positions
from tests.refusals import refused
from tests.skip.draws import rng


def test_a_section_has_its_own_target_window():
    ids = skip_positions(Pose(target_len=500), 90, generator=rng(5))
    assert ids.tolist() == skip_positions("pose", 90, target_len=500, generator=rng(5)).tolist()


ROW = "sentence_lengths: must be whole numbers >= 1 that sum to n_tokens="
WRONG = [  # method, tokens, other arguments, the beginning of the line
    ("longrecip", 4, {}, "skip.method=longrecip: unknown method; did you mean longrecipe?"),
    ("xqzw", 4, {}, "skip.method=xqzw: unknown method; use one of: pose, rpes, longrecipe"),
    ("pose", 0, {}, "target_len=8: must be >= n_tokens=0 >= 1"),
    ("rpes", 9, {}, "target_len=8: must be >= n_tokens=9 >= 1"),
    ("pose", 4, {"target_len": None}, "target_len=None: must be "),
    ("longrecipe", 4, {}, ROW),
    *(("longrecipe", 4, {"sentence_lengths": lengths}, ROW) for lengths in ([5, -1], [2, 0, 2], [2, 3], [])),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: f"{case[0]}-{case[3]}"[:60])
def test_wrong_arguments_are_refused(case):
    method, n_tokens, others, line = case
    with refused(line, error=ConfigError):
        skip_positions(method, n_tokens, **{"target_len": 8, "generator": rng(), **others})
