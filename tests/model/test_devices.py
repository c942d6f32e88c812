"""Products by oneDNN, their backward passes written out, against float64 autograd."""

import pytest
import torch
from torch import nn

from lab.model import devices
from lab.model.devices import Linear

SUM_ERROR = 1e-5  # of a sum of 300 products in float32


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape)))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("needs_input", [False, True], ids=["", "input"])
def test_onednn_computes_the_layer_and_its_gradients(bias, needs_input, monkeypatch):
    monkeypatch.setattr(devices, "onednn", lambda: torch.ops.mkldnn._linear_pointwise)
    layer, x, grad = Linear(128, 96, bias=bias), draw(2, 150, 128).requires_grad_(needs_input), draw(2, 150, 96, seed=5)
    out = layer(x)
    assert "OneDnnLinear" in out.grad_fn.name()
    out.backward(grad)
    exact, wide = nn.Linear(128, 96, bias=bias).double(), x.detach().double().requires_grad_()
    exact.load_state_dict(layer.state_dict())
    expected = exact(wide)
    expected.backward(grad.double())
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=SUM_ERROR)
    assert (x.grad is not None) == needs_input
    a, b = draw(80, 60), draw(40, 60, seed=3)
    torch.testing.assert_close(devices.multiply(a, b.T).double(), a.double() @ b.double().T, rtol=0, atol=SUM_ERROR)
    torch.testing.assert_close(
        devices.multiply(a.T, a).double(), a.double().T @ a.double(), rtol=0, atol=10 * SUM_ERROR
    )
    for ours, theirs in zip([x, *layer.parameters()], [wide, *exact.parameters()], strict=True):
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0, atol=10 * SUM_ERROR)
