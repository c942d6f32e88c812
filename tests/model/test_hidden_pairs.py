"""Intra-chunk attention alone, the one distance method that hides pairs, wherever attention is computed."""

import numpy as np
import pytest
import torch

from eval.entropy.attention_entropy import attention_entropy
from lab.counts import PositionCounts
from lab.model.attention import attend
from lab.model.generate import greedy
from lab.positions import distance, frequencies
from tests.model.attention_by_hand import drawn, tiny
from tests.model.dense import attention_by_distance, draw, rule

CHUNK, WIDTH, THETA = 5, 8, 100.0
TOL = 1e-12  # float64 sums of some dozens of terms of order one
SPEEDS = [THETA ** (-2 * j / WIDTH) for j in range(WIDTH // 2)]
ROPE = frequencies("rope", head_dim=WIDTH, theta=THETA)
INTRA = distance("dca", train_len=8, chunk=CHUNK, parts="intra")
DOCS = [[0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1]]
IDS = {
    "counting": (list(range(12)), "causal", None),
    "offset": (list(range(7, 19)), "causal", None),
    "gapped": ([0, 1, 2, 5, 6, 7, 8, 20, 21, 40, 41, 44], "causal", None),
    "documents": (list(range(12)), "document", DOCS),
}
backends = pytest.mark.parametrize("backend", ["reference", "sdpa"])


@backends
@pytest.mark.parametrize(("ids", "mask", "docs"), IDS.values(), ids=IDS)
def test_keys_of_other_chunks_are_not_seen(backend, ids, mask, docs):
    q, k, v = draw(5, 2, 4, 2, 12, 12, WIDTH)
    doc_ids = None if docs is None else torch.tensor(docs)
    out = attend(
        *(q, k, v),
        frequencies=ROPE,
        distance=INTRA,
        k_pos=torch.tensor(ids),
        doc_ids=doc_ids,
        mask=mask,
        backend=backend,
    )
    masked = rule(mask, docs)
    expected = attention_by_distance(
        *(q, k, v, SPEEDS),
        lambda b, m, n: ids[m] - ids[n],
        lambda b, m, n: masked(b, m, n) and ids[m] // CHUNK == ids[n] // CHUNK,
    )
    torch.testing.assert_close(out, expected, rtol=0, atol=TOL)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_gradients_are_those_of_the_chunks_alone(backend):
    leaves = [x.requires_grad_() for x in draw(6, 1, 2, 1, 13, 13, WIDTH)]
    weight = draw(7, 1, 2, 1, 13, 13, WIDTH)[0]
    out = attend(*leaves, frequencies=ROPE, distance=INTRA, backend=backend)
    cut = [(0, 5), (5, 10), (10, 13)]
    alone = [attend(*(x[:, :, a:b] for x in leaves), frequencies=ROPE, backend="reference") for a, b in cut]
    expected = torch.cat(alone, dim=2)
    torch.testing.assert_close(out, expected, rtol=0, atol=TOL)
    got, truth = (torch.autograd.grad((x * weight).sum(), leaves) for x in (out, expected))
    for x, y in zip(got, truth, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=10 * TOL)


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


def test_entropies_are_those_of_the_chunks():
    tokens = drawn(12)
    found = attention_entropy(tiny(method=INTRA), tokens)
    parts = [attention_entropy(tiny(), part) for part in tokens.split(CHUNK, dim=1)]
    torch.testing.assert_close(found, torch.cat(parts, dim=-1), rtol=0, atol=1e-11)


def test_hidden_pairs_are_not_counted():
    rows = lambda q, k: INTRA.rel_pos(torch.from_numpy(q), torch.from_numpy(k)).numpy()  # noqa: E731
    hidden, chunks = PositionCounts(12, rows), PositionCounts(12)
    hidden.add_segments([12, 7, 3])
    chunks.add_segments([5, 5, 2, 5, 2, 3])  # each segment cut at multiples of 5
    assert np.array_equal(hidden.frequency(), chunks.frequency())
