"""RMSNorm without gradients against its equation and torch's own."""

import pytest
import torch

from lab.model.norm import RMSNorm


def test_by_hand():
    norm = RMSNorm(2, eps=0.5)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, 10.0]))
        out = norm(torch.tensor([[1.0, 2.0], [0.0, 0.0]]))  # mean of squares 2.5, and 0.5 is added: sqrt(3)
    assert out.flatten().tolist() == pytest.approx([2 / 3**0.5, 20 / 3**0.5, 0.0, 0.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 128), (3, 50, 128), (0, 4, 128)], ids=str)
def test_equals_torchs_own(dtype, shape):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(dtype) * 3
    norm = RMSNorm(128, eps=1e-5, dtype=dtype)
    torch.nn.init.normal_(norm.weight, generator=generator)
    expected = norm(x.clone().requires_grad_())  # with a gradient it is torch's
    kept = x.clone()
    with torch.no_grad():
        out = norm(x)
    assert out.dtype == dtype
    assert torch.equal(x, kept)
    torch.testing.assert_close(out, expected.detach(), rtol=1e-5, atol=1e-6)
