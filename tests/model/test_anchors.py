"""Runs of a packed row that also see an anchor, as anchored training lays them out, against a dense reference."""

import pytest
import torch

from lab.model.attention import attend, backends
from lab.model.attention.layout import Layout
from lab.model.attention.segments import Segments
from lab.positions import distance, frequencies
from tests.model.dense import attention_by_distance, draw

FLOAT64_TOL = 1e-12  # float64 sums of some dozens of terms of order one
THETA, WIDTH = 100.0, 8
SPEEDS = [THETA ** (-2 * j / WIDTH) for j in range(WIDTH // 2)]
ROPE = frequencies("rope", head_dim=WIDTH, theta=THETA)
LENGTHS, ANCHORS, PADDING = [1, 7, 1, 12, 1, 5, 3], (-1, 0, 0, 0, -1, 21, 21), 4
WINDOWS = [21, 9]  # tokens of the two windows, each begun by its anchor
RUNNING = [*range(21), *range(9), *range(PADDING)]
GAPPED = [*range(8), 10, *range(12, 24), 0, 2, 3, 4, 8, 9, 11, 12, 20, *range(PADDING)]
METHODS = {
    "plain": (distance("plain"), lambda i, m, n: i),
    "string": (distance("string", shift=6, window=2), lambda i, m, n: i if i < 6 else i - 4),
    "rerope": (distance("rerope", window=4), lambda i, m, n: min(i, 4)),
    "dca": (distance("dca", chunk=4, train_len=6), lambda i, m, n: dca(m, n)),
}


def dca(m, n):
    r, back = m % 4, m // 4 - n // 4
    return (r if back == 0 else (4 + r if r < 2 else 5) if back == 1 else 5) - n % 4


def sees(b, m, n):
    """Tell from the lists above whether place m sees place n."""
    runs = [run for run, length in enumerate(LENGTHS) for _ in range(length)]
    if max(m, n) >= len(runs) or n > m:
        return False
    return runs[m] == runs[n] or ANCHORS[runs[m]] == n


@pytest.mark.parametrize(("method", "rel"), METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("ids", [RUNNING, GAPPED], ids=["running", "gapped"])
@pytest.mark.parametrize("backend", ["sdpa", "tiles", "reference"])
def test_outputs_and_gradients_equal_the_equation(method, rel, ids, backend, monkeypatch):
    if backend == "tiles":
        monkeypatch.setattr(backends, "MASKED_ROWS", 0)
    total = sum(LENGTHS) + PADDING
    leaves = [x.requires_grad_() for x in draw(1, 1, 4, 2, total, total, WIDTH)]
    segments = Segments.from_lengths(LENGTHS, total, anchors=ANCHORS)
    places = torch.tensor(ids)
    starts = (0, 1, 8, 9, 0, 1, 6) if ids is RUNNING else None
    layout = Layout.of(places, places, ROPE, method, torch.float64, segments=segments, starts=starts)
    out = attend(*leaves, layout=layout, backend="sdpa" if backend == "tiles" else backend)
    expected = attention_by_distance(*leaves, SPEEDS, lambda b, m, n: rel(ids[m] - ids[n], ids[m], ids[n]), sees)
    torch.testing.assert_close(out, expected, rtol=0, atol=FLOAT64_TOL)
    got = torch.autograd.grad(out.square().sum(), leaves)
    for x, y in zip(got, torch.autograd.grad(expected.square().sum(), leaves), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=10 * FLOAT64_TOL)


def test_keys_with_their_anchor_by_hand():
    # three runs: the anchor, two tokens, one token; both see place 0
    segments = Segments.from_lengths([1, 2, 1], 5, anchors=(-1, 0, 0))
    spans = segments.spans
    assert segments.key_places.tolist() == [0, 0, 1, 2, 0, 3]
    assert (spans.cu_k.tolist(), spans.k_lengths) == ([0, 1, 4, 6], (1, 3, 2))
    assert (spans.cu_q.tolist(), spans.q_lengths) == ([0, 1, 3, 4], (1, 2, 1))
    assert spans.arguments[2:] == (2, 3)
    assert [x.tolist() for x in spans.places] == [[0, 1, 1, 2], [0, 0, 1, 0]]
    assert segments.anchor_of.tolist() == [-1, 0, 0, 0, -1]
