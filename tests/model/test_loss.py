import pytest
import torch
from torch.nn import functional as F

from lab.core.types import IGNORE
from lab.model import loss
from lab.model.loss import chunk_terms, summed_cross_entropy
from tests.model.conftest import Watch

FLOAT64_TOL = 1e-10  # a sum of some hundred float64 losses of order ten
FLOAT32_TOL = 1e-4  # the same in float32
BFLOAT16_TOL = 2e-2  # relative: logits and their gradients are rounded to 8 bits, 2^-9 each, errors mostly cancel
SUM_TOL = 1e-5  # of sums in float32; sums rounded to bfloat16 err by 2^-9


def case(tokens, vocab, width, dtype=torch.float64, ignored=(), seed=0):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(vocab, width, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    targets = torch.randint(0, vocab, (tokens,), generator=g)
    targets[list(ignored)] = IGNORE
    return hidden, weight, targets


def with_gradients(loss, leaves, scale):
    return [loss.detach(), *torch.autograd.grad(loss * scale, leaves)]


def torch_loss(hidden, weight, targets):
    return F.cross_entropy(hidden @ weight.T, targets, ignore_index=IGNORE, reduction="sum")


@pytest.mark.parametrize("chunk", [1, 5, 16, 37, 64], ids="chunk_{}".format)
@pytest.mark.parametrize("ignored", [(), (0, 5, 6, 36), range(37)], ids=["all_scored", "some_ignored", "all_ignored"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, FLOAT64_TOL), (torch.float32, FLOAT32_TOL)], ids=["float64", "float32"]
)
def test_value_and_gradients_equal_torchs(dtype, tolerance, ignored, chunk, monkeypatch):
    monkeypatch.setattr(loss, "chunk_tokens", lambda n_vocab: chunk)
    hidden, weight, targets = case(37, 19, 8, dtype, ignored)
    got = with_gradients(summed_cross_entropy(hidden, weight, targets), (hidden, weight), scale=0.7)
    expected = with_gradients(torch_loss(hidden, weight, targets), (hidden, weight), scale=0.7)
    for x, y in zip(got, expected, strict=True):
        assert x.dtype == dtype
        torch.testing.assert_close(x, y, rtol=0, atol=tolerance)


def test_large_logits_do_not_overflow():
    hidden, weight, targets = case(12, 9, 4, torch.float32)
    got = summed_cross_entropy(1e4 * hidden, weight, targets)
    expected = torch_loss(1e4 * hidden.double(), weight.double(), targets)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=0)


def test_bfloat16_autocast_is_near_and_leaves_float32_gradients():
    hidden, weight, targets = case(256, 50, 16, torch.float32, ignored=(3, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = summed_cross_entropy(hidden, weight, targets)
    got = with_gradients(total, (hidden, weight), scale=1.0)
    expected = with_gradients(torch_loss(hidden.double(), weight.double(), targets), (hidden, weight), scale=1.0)
    for x, y in zip(got, expected, strict=True):
        assert x.dtype == torch.float32
        assert float((x - y).norm() / y.norm()) < BFLOAT16_TOL


def test_no_more_than_a_chunk_of_logits_is_made(monkeypatch):
    monkeypatch.setattr(loss, "chunk_tokens", lambda n_vocab: 16)
    hidden, weight, targets = case(512, 300, 4, torch.float32)
    largest = []

    def note(operator, arguments, out):
        largest.append(out.numel() if isinstance(out, torch.Tensor) else 0)

    with Watch(note):
        summed_cross_entropy(hidden, weight, targets).backward()
    assert max(largest) == 16 * 300, "of 512 * 300 logits"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, FLOAT64_TOL), (torch.bfloat16, BFLOAT16_TOL)])
def test_value_and_gradients_on_a_gpu_equal_torchs_on_the_cpu(dtype, tolerance):
    hidden, weight, targets = case(37, 19, 8, ignored=(0, 5))
    moved = [x.detach().to("cuda", dtype).requires_grad_() for x in (hidden, weight)]
    wide = [x.detach().cpu().double().requires_grad_() for x in moved]
    got = with_gradients(summed_cross_entropy(*moved, targets.cuda()), moved, scale=1.0)
    expected = with_gradients(torch_loss(*wide, targets), wide, scale=1.0)
    for x, y in zip(got, expected, strict=True):
        assert float((x.cpu().double() - y).norm() / y.norm()) < tolerance


def test_the_heads_gradient_is_added_up_in_float32(stood_in):
    g = torch.Generator().manual_seed(1)
    total = torch.randn(40, 30, generator=g)
    parts = [[torch.randn(n, m, generator=g).bfloat16() for n, m in ((40, 20), (20, 30))] for _ in range(8)]
    exact = total.double() + sum(a.double() @ b.double() for a, b in parts)
    for a, b in parts:
        loss.add_product(total, a, b)
    assert float((total - exact).norm() / exact.norm()) < SUM_TOL


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
