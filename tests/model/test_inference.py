"""Layers without gradients against their equations in float64 and torch's own; which passes take oneDNN."""

import pytest
import torch
from torch.nn import functional as F

from lab.model import inference, products
from lab.model.decoder import Decoder, DecoderConfig
from lab.model.inference import product, suits_onednn
from lab.model.layers import Linear, RMSNorm

TOLERANCE = {"rtol": 1e-5, "atol": 3e-4}  # roundings of sums of 128 products of normal numbers in float32

shapes = pytest.mark.parametrize("shape", [(3, 300, 128), (1, 1, 128), (2, 128), (0, 128)], ids=str)
bias = pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])


def layer(bias, width=128, out=96, dtype=torch.float32):
    made = Linear(width, out, bias=bias, dtype=dtype)
    for p in made.parameters():
        torch.nn.init.normal_(p, generator=torch.Generator().manual_seed(p.numel()))
    return made


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def by_definition(made, x):
    out = x.double() @ made.weight.double().T
    return out if made.bias is None else out + made.bias.double()


@pytest.fixture
def fast_onednn(monkeypatch):
    if inference.onednn() is None:
        pytest.skip("torch was built without oneDNN")
    monkeypatch.setattr(products, "processor", lambda: products.Processor(bfloat16=True, onednn=True))


@pytest.mark.usefixtures("fast_onednn")
@shapes
@bias
def test_onednn_computes_the_layer_and_what_is_fused_with_it(shape, bias, monkeypatch):
    monkeypatch.setattr(inference, "LEAST_WEIGHTS", 1)
    made, x = layer(bias), draw(*shape)
    whole = by_definition(made, x)
    other = draw(*whole.shape)
    kept = other.clone()
    with torch.no_grad():
        assert suits_onednn(x, made.weight)
        torch.testing.assert_close(made(x).double(), whole, **TOLERANCE)
        torch.testing.assert_close(product(made, x, silu=True).double(), whole * torch.sigmoid(whole), **TOLERANCE)
        torch.testing.assert_close(product(made, x, times=other).double(), whole * kept.double(), **TOLERANCE)


@shapes
@bias
def test_the_plain_layer_fuses_the_same(shape, bias):
    made, x = layer(bias, dtype=torch.float64), draw(*shape).double()
    whole = by_definition(made, x)
    other = draw(*whole.shape).double()
    with torch.no_grad():
        assert not suits_onednn(x, made.weight)
        torch.testing.assert_close(made(x), whole)
        torch.testing.assert_close(product(made, x, silu=True), whole * torch.sigmoid(whole))
        torch.testing.assert_close(product(made, x, times=other), whole * other)


@pytest.mark.usefixtures("fast_onednn")
def test_passes_that_take_onednn(monkeypatch):
    made, x = layer(False, 512, 512), draw(1, 512)  # 2^18 weights
    small, row, rows = layer(False, 128, 128), draw(63, 128), draw(64, 128)  # 64 * 2^14 = 2^20 products
    with torch.no_grad():
        assert suits_onednn(x, made.weight)
        assert not suits_onednn(x[:, :511], layer(False, 511, 512).weight)
        assert suits_onednn(rows, small.weight)
        assert not suits_onednn(row, small.weight)
        assert not suits_onednn(x.double(), made.weight.double())
        with torch.autocast("cpu", torch.bfloat16):
            assert not suits_onednn(x, made.weight)
            assert made(x).dtype == torch.bfloat16
        monkeypatch.setattr(products, "processor", lambda: products.Processor(bfloat16=True, onednn=False))
        assert not suits_onednn(x, made.weight)


def test_gradients_are_those_of_the_plain_layer():
    made, x = layer(True), draw(40, 300, 128).requires_grad_()
    made(x).square().sum().backward()
    ours = [p.grad.clone() for p in (*made.parameters(), x)]
    made.zero_grad()
    x.grad = None
    F.linear(x, made.weight, made.bias).square().sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(ours, (*made.parameters(), x), strict=True))
    with pytest.raises(AssertionError, match="gradient"):
        product(made, x, silu=True)


def test_a_decoder_of_float32_without_gradients_is_the_float64_one():
    cfg = DecoderConfig(128, 2, 4, 2, 344, 600, tie_embeddings=False, qkv_bias=True)
    tokens = torch.randint(600, (8, 64), generator=torch.Generator().manual_seed(1))
    model = Decoder(cfg, seed=1)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.1, generator=torch.Generator().manual_seed(p.numel()))
    with torch.no_grad():
        out = model(tokens)
        wide = model.double()(tokens)
    torch.testing.assert_close(out.double(), wide, rtol=0, atol=1e-4 * float(wide.abs().max()))


def test_rms_norm_by_hand():
    norm = RMSNorm(2, eps=0.5)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, 10.0]))
        out = norm(torch.tensor([[1.0, 2.0], [0.0, 0.0]]))  # mean of squares 2.5, and 0.5 is added: sqrt(3)
    assert out.flatten().tolist() == pytest.approx([2 / 3**0.5, 20 / 3**0.5, 0.0, 0.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 128), (3, 50, 128), (0, 4, 128)], ids=str)
def test_rms_norm_equals_torchs_own(dtype, shape):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(dtype) * 3
    norm = RMSNorm(128, eps=1e-5, dtype=dtype)
    torch.nn.init.normal_(norm.weight, generator=generator)
    expected = F.rms_norm(x, (128,), norm.weight, 1e-5)
    kept = x.clone()
    with torch.no_grad():
        out = norm(x)
    assert out.dtype == dtype
    assert torch.equal(x, kept)
    torch.testing.assert_close(out, expected.detach(), rtol=1e-5, atol=1e-6)
