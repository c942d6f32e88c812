import importlib.util

import pytest
import torch

from lab.model import backends
from lab.model.attention import attend
from lab.model.layout import Layout
from lab.model.segments import Segments
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
