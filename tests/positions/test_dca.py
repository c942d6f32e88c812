import math

import pytest
import torch

from lab.positions import distance
from tests.positions.by_definition import causal_rows

CHUNK_A = [5, 4, 3, 2, 1, 0]  # what the last query of a chunk of 6 sees of its own chunk


def test_every_row_of_the_papers_example():
    # arXiv:2402.17463, section 3: c = 10, s = 6, w = 4, 12 tokens. Keys stand at 0 1 2 3 4 5 in each chunk, queries
    # at 0 .. 5 for their own chunk and at 6 7 8 9 9 9 for the chunk before.
    expected = [
        [0],
        [1, 0],
        [2, 1, 0],
        [3, 2, 1, 0],
        [4, 3, 2, 1, 0],
        CHUNK_A,
        # 6 - (0 .. 5), then the query at 0
        [6, 5, 4, 3, 2, 1, 0],
        [7, 6, 5, 4, 3, 2, 1, 0],
        [8, 7, 6, 5, 4, 3, 2, 1, 0],
        [9, 8, 7, 6, 5, 4, 3, 2, 1, 0],
        # 9 again: c - 1
        [9, 8, 7, 6, 5, 4, 4, 3, 2, 1, 0],
        [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0],
    ]
    assert causal_rows(distance("dca", train_len=10, chunk=6, window=4), 12) == expected


@pytest.mark.parametrize(
    ("parameters", "chunk", "window"),
    [
        # 3 * 2048 / 4 and 2048 - 1536
        pytest.param({"train_len": 2048}, 1536, 512, id="llama_2"),
        # 3 * 10 / 4 rounded down, 10 - 7
        pytest.param({"train_len": 10}, 7, 3, id="rounded_down"),
        pytest.param({"train_len": 10, "chunk": 6}, 6, 4, id="window_left_out"),
        pytest.param({"train_len": 1}, 1, 0, id="one_token"),
    ],
)
def test_defaults_are_the_papers(parameters, chunk, window):
    given = distance("dca", train_len=parameters["train_len"], chunk=chunk, window=window)
    assert causal_rows(distance("dca", **parameters), 40) == causal_rows(given, 40)
    config = distance("dca", **parameters)
    assert (config.s, config.w) == (chunk, window)


NAN = math.nan
ABLATED = {  # arXiv:2402.17463, Figure 2 (a) and (b): c = 10, s = 6; rows of queries 5, 6, 11 and 12
    "intra": [CHUNK_A, [NAN] * 6 + [0], [NAN] * 6 + CHUNK_A, [NAN] * 12 + [0]],
    # 9 - (0 .. 5) for every other chunk
    "intra_inter": [
        CHUNK_A,
        [9, 8, 7, 6, 5, 4, 0],
        [9, 8, 7, 6, 5, 4, *CHUNK_A],
        [9, 8, 7, 6, 5, 4, 9, 8, 7, 6, 5, 4, 0],
    ],
}


@pytest.mark.parametrize(("parts", "expected"), ABLATED.items(), ids=ABLATED)
def test_rows_of_the_ablation_by_hand(parts, expected):
    dca = distance("dca", train_len=10, chunk=6, parts=parts)
    for q_pos, row in zip((5, 6, 11, 12), expected, strict=True):
        found = dca.rel_pos(torch.tensor([q_pos]), torch.arange(q_pos + 1))[0]
        torch.testing.assert_close(found, torch.tensor(row, dtype=torch.float64), equal_nan=True, rtol=0, atol=0)
