"""Intra-chunk attention alone, the one distance method that hides pairs, wherever attention is computed."""

import numpy as np
import torch

from lab.counts import PositionCounts
from lab.model.generate import greedy
from lab.positions import distance
from tests.model.attention_by_hand import drawn, tiny

CHUNK = 5
INTRA = distance("dca", train_len=8, chunk=CHUNK, parts="intra")


def test_a_decoder_reads_every_chunk_as_a_text_of_its_own():
    decoder, plain, tokens = tiny(method=INTRA), tiny(), drawn(13, rows=2)
    with torch.no_grad():
        expected = torch.cat([plain(part) for part in tokens.split(CHUNK, dim=1)], dim=1)
        torch.testing.assert_close(decoder(tokens), expected, rtol=0, atol=1e-10)
    answer = greedy(decoder, tokens, 6)
    for row, said in zip(tokens.tolist(), answer.tolist(), strict=True):
        for token in said:
            with torch.no_grad():
                chunk = row[len(row) // CHUNK * CHUNK :] if len(row) % CHUNK else row[-CHUNK:]
                assert int(plain(torch.tensor([chunk]))[0, -1].argmax()) == token
            row.append(token)


def test_hidden_pairs_are_not_counted():
    rows = lambda q, k: INTRA.rel_pos(torch.from_numpy(q), torch.from_numpy(k)).numpy()  # noqa: E731
    hidden, chunks = PositionCounts(12, rows), PositionCounts(12)
    hidden.add_segments([12, 7, 3])
    chunks.add_segments([5, 5, 2, 5, 2, 3])  # each segment cut at multiples of 5
    assert np.array_equal(hidden.frequency(), chunks.frequency())
