import importlib.util

import pytest
import torch

from lab.model.attention import attend, backends
from lab.model.attention.layout import Layout
from lab.model.attention.segments import Segments
from lab.positions import distance, frequencies
from tests.model.dense import dense_attention, draw, rule

BFLOAT16_TOL = 3e-2  # rotated queries, keys, weights and outputs of order one to four are each rounded to 8 bits
FLOAT32_TOL = 3e-4  # a GPU's float32 products may be tensor-core sums in another order
HEADS, KV_HEADS, WIDTH = 4, 2, 64
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def needs(package):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"needs {package}")


kernels = pytest.mark.parametrize(
    ("backend", "dtype", "tolerance"),
    [
        pytest.param("sdpa", torch.float32, FLOAT32_TOL, id="sdpa_float32"),
        pytest.param("sdpa", torch.bfloat16, BFLOAT16_TOL, id="sdpa"),
        pytest.param("varlen", torch.bfloat16, BFLOAT16_TOL, id="varlen"),
        pytest.param("flash", torch.bfloat16, BFLOAT16_TOL, id="flash", marks=needs("flash_attn")),
        pytest.param("xformers", torch.bfloat16, BFLOAT16_TOL, id="xformers", marks=needs("xformers")),
    ],
)


def rows_on_gpu(seed, n_q, n_k, dtype):
    return [x.to("cuda", dtype) for x in draw(seed, 1, HEADS, KV_HEADS, n_q, n_k, WIDTH)]


@kernels
@pytest.mark.parametrize("padding", [0, 5], ids=["full", "padded"])
def test_packed_rows_equal_the_segments_alone_with_gradients(backend, dtype, tolerance, padding):
    lengths = [17, 1, 40, 6]
    total = sum(lengths) + padding
    leaves = [x.requires_grad_() for x in rows_on_gpu(1, total, total, dtype)]
    rope = frequencies("rope", head_dim=WIDTH)
    segments = Segments.from_lengths(lengths, total, "cuda")
    plain = distance("plain")
    layout = Layout.of(segments.position_ids, segments.position_ids, rope, plain, dtype, segments=segments)
    out = attend(*leaves, layout=layout, backend=backend)
    copies = [x.detach().cpu().double().requires_grad_() for x in leaves]
    docs = [[s for s, n in enumerate(lengths) for _ in range(n)] + [-1] * padding]
    ids = [[i for n in [*lengths, padding] for i in range(n)]]
    expected = dense_attention(*copies, 10000.0, ids, ids, rule("document", docs))
    torch.testing.assert_close(out.cpu().double(), expected, rtol=0, atol=tolerance)
    got = torch.autograd.grad(out.float().sum(), leaves)
    wanted = torch.autograd.grad(expected.sum(), copies)
    for x, y in zip(got, wanted, strict=True):
        assert float((x.cpu().double() - y).norm() / y.norm()) < tolerance


@kernels
@pytest.mark.parametrize("n_q", [1, 33], ids=["decoding", "whole_row"])
def test_plain_rows_equal_attention_by_definition(backend, dtype, tolerance, n_q):
    q, k, v = rows_on_gpu(2, n_q, 33, dtype)
    out = attend(q, k, v, backend=backend)
    ids = [list(range(33))]
    wide = [x.cpu().double() for x in (q, k, v)]
    expected = dense_attention(*wide, 10000.0, [ids[0][33 - n_q :]], ids, rule("causal", None))
    assert out.dtype == dtype
    torch.testing.assert_close(out.cpu().double(), expected, rtol=0, atol=tolerance)


def test_auto_takes_a_variable_length_kernel_for_half_precision_only():
    device = torch.device("cuda")
    expected = "flash" if importlib.util.find_spec("flash_attn") else "varlen"
    assert backends.choose("auto", device, torch.bfloat16)[0] == expected
    assert backends.choose("auto", device, torch.float32)[0] == "sdpa"


METHODS = {
    "plain": distance("plain"),
    "string": distance("string", shift=90, window=16),
    "dca": distance("dca", train_len=160),
    "self_extend": distance("self_extend", group=4, window=64),
    "rerope": distance("rerope", window=100),
    "leaky_rerope": distance("leaky_rerope", window=100, leak=4.0, log_n=128),
}
TILED = pytest.mark.parametrize(
    ("backend", "dtype", "tolerance"),
    [
        pytest.param("sdpa", torch.float32, FLOAT32_TOL, id="sdpa_float32"),
        pytest.param("varlen", torch.bfloat16, BFLOAT16_TOL, id="varlen"),
        pytest.param("flex", torch.bfloat16, BFLOAT16_TOL, id="flex"),
        pytest.param("flash", torch.bfloat16, BFLOAT16_TOL, id="flash", marks=needs("flash_attn")),
    ],
)


@TILED
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("n_q", [1, 100, 300], ids=["decoding", "chunk", "prefill"])
def test_distance_methods_equal_the_reference(method, backend, dtype, tolerance, n_q):
    q, k, v = rows_on_gpu(3, n_q, 300, dtype)
    out = attend(q, k, v, distance=method, backend=backend)
    wide = [x.cpu().double() for x in (q, k, v)]
    expected = attend(*wide, distance=method, backend="reference")
    assert out.dtype == dtype
    torch.testing.assert_close(out.cpu().double(), expected, rtol=0, atol=tolerance)


@TILED
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_gradients_of_distance_methods_on_packed_rows_equal_the_reference(method, backend, dtype, tolerance):
    lengths, total = [170, 1, 300, 29], 512
    leaves = [x.requires_grad_() for x in rows_on_gpu(4, total, total, dtype)]
    copies = [x.detach().cpu().double().requires_grad_() for x in leaves]
    rope = frequencies("rope", head_dim=WIDTH)
    outs = []
    for tensors, name in ((leaves, backend), (copies, "reference")):
        segments = Segments.from_lengths(lengths, total, tensors[0].device)
        ids = segments.position_ids
        layout = Layout.of(ids, ids, rope, method, tensors[0].dtype, segments=segments, starts=(0, 0, 0, 0))
        outs.append(attend(*tensors, layout=layout, backend=name))
    got = torch.autograd.grad(outs[0].float().square().sum(), leaves)
    wanted = torch.autograd.grad(outs[1].square().sum(), copies)
    for x, y in zip(got, wanted, strict=True):
        assert float((x.cpu().double() - y).norm() / y.norm()) < 2 * tolerance


@pytest.mark.parametrize("mask", ["document", "anchor"])
def test_flex_runs_any_mask_with_gradients(mask):
    docs = torch.tensor([[0] * 3 + [1] * 150 + [2] * 100 + [-1] * 7], device="cuda")
    leaves = [x.requires_grad_() for x in rows_on_gpu(5, 260, 260, torch.float32)]
    out = attend(*leaves, distance=METHODS["string"], doc_ids=docs, mask=mask, backend="flex")
    copies = [x.detach().cpu().double().requires_grad_() for x in leaves]
    expected = attend(*copies, distance=METHODS["string"], doc_ids=docs.cpu(), mask=mask, backend="reference")
    torch.testing.assert_close(out.cpu().double(), expected, rtol=0, atol=FLOAT32_TOL)
    got = torch.autograd.grad(out.square().sum(), leaves)
    for x, y in zip(got, torch.autograd.grad(expected.square().sum(), copies), strict=True):
        assert float((x.cpu().double() - y).norm() / y.norm()) < FLOAT32_TOL
