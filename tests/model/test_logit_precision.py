"""Half precision on a GPU's paths: logits are summed and kept in float32, against float64 from the same inputs."""

import math

import pytest
import torch

from lab.model.attention import attend, devices
from lab.positions import distance

HEADS, KV_HEADS, N, WIDTH = 4, 2, 40, 24
OUTPUT_TOL = 2**-8  # values of order one, rounded once to 8 bits


def large(seed=0):
    """Draw bfloat16 tensors whose logits reach some dozens, where 8 bits are 0.1 to 0.25 apart."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(1, HEADS, N, WIDTH), (1, KV_HEADS, N, WIDTH), (1, KV_HEADS, N, WIDTH)]
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    return [x.bfloat16() for x in (6 * q, 3 * k, v.clamp(-1, 1))]


def by_definition(q, k, v, seen):
    """Attend one head and one query at a time in float64."""
    out, lse = torch.zeros(q.shape, dtype=torch.float64), torch.zeros(q.shape[:3], dtype=torch.float64)
    for h in range(HEADS):
        keys, values = (x[0, h // (HEADS // KV_HEADS)].double() for x in (k, v))
        for m in range(N):
            places = [n for n in range(N) if seen(m, n)]
            logits = (keys[places] @ q[0, h, m].double()) / math.sqrt(WIDTH)
            lse[0, h, m] = logits.logsumexp(0)
            out[0, h, m] = torch.exp(logits - lse[0, h, m]) @ values[places]
    return out, lse


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(devices, "kind", lambda device: "cuda")


METHODS = {"plain": distance("plain"), "string": distance("string", shift=9, window=3)}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_dense_masks_round_no_logit(on_gpu, method):
    q, k, v = large(1)
    ids = torch.zeros(N, dtype=torch.int64)  # rotations by nothing, which round nothing
    out = attend(q, k, v, q_pos=ids, k_pos=ids, distance=method, backend="sdpa")
    assert out.dtype == torch.bfloat16
    expected = by_definition(q, k, v, lambda m, n: n <= m)[0]
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=OUTPUT_TOL)
