"""Bytes that the loss moves on a GPU, counted by stand-ins, and the precision of the head's gradient."""

import pytest
import torch

from lab.model import loss
from lab.model.loss import chunk_terms

SUM_TOL = 1e-5  # of sums in float32; sums rounded to bfloat16 err by 2^-9


def test_the_heads_gradient_is_added_up_in_float32(stood_in):
    g = torch.Generator().manual_seed(1)
    total = torch.randn(40, 30, generator=g)
    parts = [[torch.randn(n, m, generator=g).bfloat16() for n, m in ((40, 20), (20, 30))] for _ in range(8)]
    exact = total.double() + sum(a.double() @ b.double() for a, b in parts)
    for a, b in parts:
        loss.add_product(total, a, b)
    assert float((total - exact).norm() / exact.norm()) < SUM_TOL


def test_nothing_is_compiled_without_a_c_compiler(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert loss.compiled_terms.__wrapped__() is chunk_terms


@pytest.mark.slow
def test_the_compiled_terms_equal_the_uncompiled():
    g = torch.Generator().manual_seed(2)
    compiled = torch.compile(chunk_terms, fullgraph=True)
    for n in (64, 64, 23):
        logits, weights = torch.randn(n, 300, generator=g), torch.rand(n, generator=g)
        targets = torch.randint(0, 300, (n,), generator=g)
        for trains in (True, False):
            given = targets, weights, (weights > 0.2).float(), trains
            with torch.no_grad():
                got, expected = compiled(logits.clone(), *given), chunk_terms(logits.clone(), *given)
            torch.testing.assert_close(got, expected)
