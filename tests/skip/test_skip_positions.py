"""What all methods promise, and how wrong arguments are refused."""

import pytest

from lab.core.errors import ConfigError
from lab.skip import Pose, skip_positions
from tests.refusals import refused
from tests.skip.draws import rng


def test_a_section_has_its_own_target_window():
    ids = skip_positions(Pose(target_len=500), 90, generator=rng(5))
    assert ids.tolist() == skip_positions("pose", 90, target_len=500, generator=rng(5)).tolist()
    with pytest.raises(ConfigError, match="^target_len=600: would be ignored"):
        skip_positions(Pose(target_len=500), 90, target_len=600, generator=rng(5))


ROW = "sentence_lengths: must be whole numbers >= 1 that sum to n_tokens="
FITS = "target_len=8: must be >= n_tokens=9"
WRONG = [  # method, tokens, other arguments, the beginning of each line
    ("longrecip", 4, {}, "skip.method=longrecip: unknown method; did you mean longrecipe?"),
    ("xqzw", 4, {}, "skip.method=xqzw: unknown method; use one of: pose, rpes, longrecipe"),
    ("pose", 0, {}, "n_tokens=0: must be a whole number >= 1"),
    ("longrecipe", 2.0, {"sentence_lengths": [2]}, "n_tokens=2.0: must be a whole number >= 1"),
    ("rpes", 9, {}, FITS),
    ("pose", 4, {"target_len": None}, "target_len=None: must be "),
    ("pose", 4, {"sentence_lengths": [4]}, "sentence_lengths: would be ignored"),
    ("longrecipe", 4, {}, ROW),
    *(
        ("longrecipe", 4, {"sentence_lengths": lengths}, ROW)
        for lengths in ([5, -1], [2, 0, 2], [2, 3], [], [2.0, 2.0], [True] * 4, [[2, 2]], 4, "22")
    ),
    ("longrecipe", 9, {"sentence_lengths": [0]}, FITS, ROW),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: f"{case[0]}-{case[3]}"[:60])
def test_wrong_arguments_are_refused(case):
    method, n_tokens, others, *lines = case
    with refused(*lines, error=ConfigError):
        skip_positions(method, n_tokens, **{"target_len": 8, "generator": rng(), **others})
