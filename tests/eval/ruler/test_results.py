"""Averages and effective length by hand."""

import pytest

from eval.ruler.scores import averages, effective_length
from eval.ruler.tasks import ALL

# niah 8 x 90, vt 60, cwe 40, fwe 80, qa 30 and 50: retrieval 90, tracing 60, aggregation 60, answering 40;
# average (720 + 60 + 40 + 80 + 30 + 50) / 13 = 980 / 13
ROW = {"vt": 60.0, "cwe": 40.0, "fwe": 80.0, "qa_1": 30.0, "qa_2": 50.0}
SCORES = {(task.name, 4096): ROW.get(task.name, 90.0) for task in ALL}


def test_categories_weigh_their_tasks_alike_and_the_average_all_13():
    assert averages(SCORES, 4096) == {
        "retrieval": 90.0,
        "multi-hop tracing": 60.0,
        "aggregation": 60.0,
        "question answering": 40.0,
        "average": pytest.approx(980 / 13),
    }


@pytest.mark.parametrize(
    ("curve", "reached"),
    [
        ({4096: 90, 8192: 86, 16384: 85.6, 32768: 85.5}, 16384),
        ({4096: 85.5, 8192: 99}, 0),
        ({4096: 90, 8192: 80, 16384: 90}, 4096),
        ({8192: 80, 4096: 90}, 4096),
        ({4096: 100, 131072: 100}, 131072),
    ],
)
def test_the_effective_length_ends_before_the_first_length_below(curve, reached):
    assert effective_length({("vt", length): score for length, score in curve.items()}, 85.6) == reached
