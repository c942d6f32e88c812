"""Attention from one query by plain products, against the sums of its definition."""

import math

import pytest
import torch

from lab.model.attention.kernels import CpuFlash, one_query, suits_one_query


def by_definition(q, k, v):
    """Sum over keys, one head of one row at a time."""
    out, lse = torch.zeros_like(q), torch.zeros(q.shape[:3], dtype=q.dtype)
    for b in range(q.shape[0]):
        for n in range(q.shape[1]):
            head = n // (q.shape[1] // k.shape[1])
            exps = [math.exp(float(q[b, n, 0] @ key) / q.shape[3] ** 0.5) for key in k[b, head]]
            out[b, n, 0] = sum(e * value for e, value in zip(exps, v[b, head])) / sum(exps)
            lse[b, n, 0] = math.log(sum(exps))
    return out, lse


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)], ids=str)
def test_one_query_by_definition(heads):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, heads[0], 1, 8, generator=generator, dtype=torch.float64)
    k, v = torch.randn(2, 3, heads[1], 20, 8, generator=generator, dtype=torch.float64)[..., :13, :]
    for ours, expected in zip(one_query(q, k, v), by_definition(q, k, v), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_flash_attention_leaves_one_query_with_many_keys_to_plain_products(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 1, 32, generator=generator)
    k = torch.randn(2, 2, 8192, 32, generator=generator)  # 2^20 numbers
    assert suits_one_query(q, k)
    assert not suits_one_query(q, k[:, :, 1:])
    assert not suits_one_query(q.expand(-1, -1, 2, -1), k)
    flash = torch.nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    monkeypatch.setattr(CpuFlash, "rows", lambda *_: pytest.fail("flash attention runs"))
    torch.testing.assert_close(CpuFlash().forward(q, k, k, False)[0], flash)
