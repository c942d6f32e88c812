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
    ("q_pos", "expected"),
    [
        # third chunk: the first chunk from c - 1 = 9, the second from 6, its own from 0
        pytest.param(12, [9, 8, 7, 6, 5, 4, 6, 5, 4, 3, 2, 1, 0], id="first_of_the_third_chunk"),
        # r = 5 is beyond the window: 9 for both earlier chunks
        pytest.param(17, [9, 8, 7, 6, 5, 4, 9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0], id="last_of_the_third_chunk"),
        # fourth chunk, r = 1: two inter chunks from 9, then 7 for the one before
        pytest.param(19, [9, 8, 7, 6, 5, 4, 9, 8, 7, 6, 5, 4, 7, 6, 5, 4, 3, 2, 1, 0], id="second_of_the_fourth_chunk"),
    ],
)
def test_rows_with_chunks_further_back_by_hand(q_pos, expected):
    dca = distance("dca", train_len=10, chunk=6, window=4)
    assert dca.rel_pos(torch.tensor([q_pos]), torch.arange(q_pos + 1)).tolist() == [expected]


@pytest.mark.parametrize(
    ("parameters", "chunk", "window"),
    [
        # 3 * 2048 / 4 and 2048 - 1536
        pytest.param({"train_len": 2048}, 1536, 512, id="llama_2"),
        # 3 * 10 / 4 rounded down, 10 - 7
        pytest.param({"train_len": 10}, 7, 3, id="rounded_down"),
        pytest.param({"train_len": 10, "chunk": 6}, 6, 4, id="window_left_out"),
        pytest.param({"train_len": 10, "window": 1}, 7, 1, id="chunk_left_out"),
        pytest.param({"train_len": 1}, 1, 0, id="one_token"),
    ],
)
def test_defaults_are_the_papers(parameters, chunk, window):
    given = distance("dca", train_len=parameters["train_len"], chunk=chunk, window=window)
    assert causal_rows(distance("dca", **parameters), 40) == causal_rows(given, 40)
    config = distance("dca", **parameters)
    assert (config.s, config.w) == (chunk, window)


@pytest.mark.parametrize(("train_len", "chunk", "window"), [(10, 6, 4), (10, 6, 0), (10, 10, 0), (10, 1, 9), (7, 3, 2)])
def test_relative_positions_stay_below_the_pretraining_window(train_len, chunk, window):
    method = distance("dca", train_len=train_len, chunk=chunk, window=window)
    for n_tokens in (1, 5, 6, 7, 12, 13, 100):
        seen = {i for row in causal_rows(method, n_tokens) for i in row}
        assert min(seen) == 0
        assert max(seen) <= train_len - 1
        if n_tokens > 2 * chunk:  # an earlier chunk is there, whose first key sees c - 1
            assert max(seen) == train_len - 1


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
