"""Every backend, distance method and layout of rows against attention written pair by pair from the equations."""

import importlib.util

import pytest
import torch

from lab.core.errors import ConfigError, DataError, MissingPackage
from lab.model.attention import attend, backends
from lab.model.attention.kernels import CAUSAL_KERNELS
from lab.model.attention.segments import Segments
from lab.positions import distance, frequencies
from tests.model.by_definition import CASES, DOCS, METHODS, ONCE, RESET, Case, assert_with_gradients, draw, log_factor

TIGHT_TOL = 1e-12  # float64 sums of some dozens of terms of order one
FLOAT32_TOL = 3e-5  # the product's promise for float32
THETA, WIDTH = 100.0, 8
SPEEDS = [THETA ** (-2 * j / WIDTH) for j in range(WIDTH // 2)]
ROPE = frequencies("rope", head_dim=WIDTH, theta=THETA)
ON_CPU = ("reference", "sdpa")
by_pairs = [pytest.param("reference", *ONCE[name], id=f"pairs-{name}") for name in ONCE]
by_bands = [pytest.param("sdpa", *METHODS[name], id=f"bands-{name}") for name in METHODS]  # parameters shape the bands
INTRA = {"method": "dca", "train_len": 8, "chunk": 5, "parts": "intra"}  # the one method that hides pairs
by_chunk = lambda i, m, n: i if m // 5 == n // 5 else None  # noqa: E731
hiding = [pytest.param(name, INTRA, by_chunk, id=f"{name}-intra") for name in ON_CPU]
on_cpu_methods = pytest.mark.parametrize(("backend", "parameters", "rel"), by_pairs + by_bands + hiding)
each_once = pytest.mark.parametrize(("parameters", "rel"), ONCE.values(), ids=ONCE)
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
on_cpu = pytest.mark.parametrize("backend", ON_CPU)
FREQUENCIES = {  # method, inverse frequencies at THETA and width 8 (speeds 1, 0.316, 0.1, 0.0316), factor of layer 3
    "pi": ({"method": "pi", "factor": 4.0}, [s / 4 for s in SPEEDS], lambda m: 1.0),
    "ntk": ({"method": "ntk", "factor": 4.0}, [(THETA * 4 ** (8 / 6)) ** (-j / 4) for j in range(4)], lambda m: 1.0),
    "yarn_scale": ({"method": "yarn", "factor": 1.0, "train_len": 16, "attention_factor": 1.2}, SPEEDS, lambda m: 1.44),
    "entropy_abf": ({"method": "entropy_abf", "train_len": 4}, SPEEDS, log_factor(4)),
}


@cases
@on_cpu_methods
def test_outputs_and_gradients_on_a_cpu(backend, parameters, rel, case):
    leaves = [x.requires_grad_() for x in draw(1, case.rows, 4, 2, case.n_q, case.n_k, WIDTH)]
    factor = log_factor(4) if case.docs is None and case.ids is None else None
    method = distance(**parameters, log_n=4) if factor else distance(**parameters)
    out = case.attend(*leaves, ROPE, method, backend)
    truth = case.truth(*leaves, SPEEDS, rel, *filter(None, [factor]))
    assert_with_gradients(out, truth, leaves, TIGHT_TOL)
    single = [x.detach().float() for x in leaves]
    with torch.autocast("cpu", torch.bfloat16):  # which attention leaves in float32
        out = case.attend(*single, ROPE, method, backend)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), truth.detach(), rtol=0, atol=FLOAT32_TOL)


@on_cpu
def test_an_anchor_with_a_higher_id_is_seen(backend):
    case, q_k_v = Case(10, 10, rows=2, ids=RESET, mask="anchor", docs=DOCS), draw(3, 2, 4, 2, 10, 10, WIDTH)
    truth = case.truth(*q_k_v, SPEEDS, lambda i, m, n: i)
    out = case.attend(*q_k_v, ROPE, distance("plain"), backend)
    torch.testing.assert_close(out, truth, rtol=0, atol=TIGHT_TOL)


@each_once
def test_long_anchored_segments_run_as_tiles_on_a_cpu(parameters, rel, monkeypatch):
    monkeypatch.setattr(backends, "MASKED_ROWS", 0)
    leaves = [x.requires_grad_() for x in draw(2, 1, 4, 2, 34, 34, WIDTH)]
    case = CASES["anchored"]
    out = case.attend(*leaves, ROPE, distance(**parameters), "sdpa")
    assert_with_gradients(out, case.truth(*leaves, SPEEDS, rel), leaves, TIGHT_TOL)


@pytest.mark.parametrize(("frequency", "speeds", "factor"), FREQUENCIES.values(), ids=FREQUENCIES)
@on_cpu
@each_once
def test_frequency_and_distance_methods_combine(parameters, rel, backend, frequency, speeds, factor):
    q, k, v = draw(8, 1, 2, 1, 15, 15, WIDTH)
    rotary = frequencies(**frequency, head_dim=WIDTH, theta=THETA)
    method, other = distance(**parameters, log_n=3), log_factor(3)
    case = Case(15, 15)
    expected = case.truth(q, k, v, speeds, rel, lambda m: factor(m) * other(m))
    out = case.attend(q, k, v, rotary, method, backend, layer=3)
    torch.testing.assert_close(out, expected, rtol=0, atol=TIGHT_TOL)


# On a GPU, or by stand-ins for its kernels

BFLOAT16_TOL = 3e-2  # rotated queries, keys, weights and outputs of order one to four are each rounded to 8 bits
SINGLE_TOL = 3e-4  # a GPU's float32 products may be tensor-core sums in another order
WIDE = 64
WIDE_ROPE = frequencies("rope", head_dim=WIDE)
WIDE_SPEEDS = [10000.0 ** (-2 * j / WIDE) for j in range(WIDE // 2)]
GPU_KERNELS = [
    pytest.param("sdpa", torch.float32, SINGLE_TOL, id="sdpa_float32"),
    *(pytest.param(name, torch.bfloat16, BFLOAT16_TOL, id=name) for name in ("sdpa", "varlen", "flash", "xformers")),
]
GPU_CASES = {
    "rows": Case(50, 50, rows=2),
    "chunk": Case(12, 50, rows=2),
    "decoding": Case(1, 50, rows=2),
    "packed": Case(64, 64, lengths=(17, 1, 40, 6)),
    "packed_padded": Case(64, 64, lengths=(17, 1, 36, 5)),
    "anchored": Case(64, 64, lengths=(20, 30, 10), anchors=(-1, 0, 20), starts=(0, 20, 50)),
}
THREE, TWO = ((0,) * 3 + (1,) * 40 + (2,) * 4 + (-1,) * 3, (0,) * 50), ((0,) * 20 + (1,) * 30, (0,) * 5 + (1,) * 45)
DENSE = {
    "documents": Case(50, 50, rows=2, mask="document", docs=THREE),
    "anchor": Case(50, 50, rows=2, mask="anchor", docs=TWO),
}


def compare_on(device, dtype, tolerance, backend, case, parameters, rel):
    """Compare outputs, and gradients under a weight on every output."""
    package = {"flash": "flash_attn", "xformers": "xformers"}.get(backend)
    if package and device.type == "cuda" and importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    drawn = draw(5, case.rows, 4, 2, case.n_q, case.n_k, WIDE)
    leaves = [x.to(device, dtype).requires_grad_() for x in drawn]
    copies = [x.detach().cpu().double().requires_grad_() for x in leaves]
    out = case.attend(*leaves, WIDE_ROPE, distance(**parameters), backend, device)
    expected = case.truth(*copies, WIDE_SPEEDS, rel)
    assert out.dtype == dtype
    torch.testing.assert_close(out.detach().cpu().double(), expected.detach(), rtol=0, atol=tolerance)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(dtype)
    got = torch.autograd.grad((out * weight.to(device)).float().sum(), leaves)
    wanted = torch.autograd.grad((expected * weight.double()).sum(), copies)
    for x, y in zip(got, wanted, strict=True):
        assert float((x.cpu().double() - y).norm()) <= tolerance * float(y.norm())


@pytest.mark.parametrize("case", GPU_CASES.values(), ids=GPU_CASES)
@each_once
@pytest.mark.parametrize(("backend", "dtype", "tolerance"), GPU_KERNELS)
def test_outputs_and_gradients_on_a_gpu(device, backend, dtype, tolerance, parameters, rel, case):
    if backend == "xformers" and parameters["method"] != "plain":
        pytest.skip("returns no log-sum-exp to merge bands by")
    tolerance *= 1 if parameters["method"] == "plain" else 2
    compare_on(device, dtype, tolerance, backend, case, parameters, rel)


@pytest.mark.parametrize("case", DENSE.values(), ids=DENSE)
@each_once
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, SINGLE_TOL), (torch.bfloat16, 2 * BFLOAT16_TOL)])
def test_masks_on_a_gpu(device, dtype, tolerance, parameters, rel, case):
    compare_on(device, dtype, tolerance, "auto", case, parameters, rel)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "varlen", "flash", "xformers"])
def test_a_row_of_nothing_but_padding_comes_back_as_zeros(backend, stood_in):
    q, k, v = (x.bfloat16() for x in draw(4, 1, 4, 2, 8, 8, WIDE))
    out = Case(8, 8, lengths=()).attend(q, k, v, WIDE_ROPE, distance("plain"), backend)
    assert out.shape == q.shape
    assert (out == 0).all()


Q, K, V = draw(7, 2, 4, 2, 5, 5, 8)
MISFITS = {
    "kv_heads_do_not_divide": ((Q[:, :3], K, V), {}),
    "values_differ_from_keys": ((Q, K, V[:, :, :4]), {}),
    "more_queries_than_keys": ((Q, K[:, :, :4], V[:, :, :4]), {}),
    "head_dim_differs": ((Q, K[..., :4], V[..., :4]), {}),
    "batch_differs": ((Q, K[:1], V[:1]), {}),
    "doc_ids_too_short": ((Q, K, V), {"doc_ids": torch.zeros(2, 4, dtype=torch.int64), "mask": "document"}),
    "k_pos_too_long": ((Q, K, V), {"k_pos": torch.arange(6)}),
}


@on_cpu
@pytest.mark.parametrize(("tensors", "options"), MISFITS.values(), ids=MISFITS)
def test_shapes_that_do_not_fit_are_refused_in_one_line(tensors, options, backend):
    with pytest.raises(DataError) as caught:
        attend(*tensors, backend=backend, **options)
    assert "\n" not in str(caught.value)


def test_settings_that_cannot_run_are_refused():
    with pytest.raises(ConfigError, match="^mask=full: .* causal, document, anchor$"):
        attend(Q, K, V, mask="full")
    with pytest.raises(ConfigError, match="^mask=anchor: needs doc_ids"):
        attend(Q, K, V, mask="anchor")
    with pytest.raises(ConfigError, match="fast: .* auto, reference, sdpa, "):
        attend(Q, K, V, backend="fast")
    for backend in ("varlen", "flash", "xformers"):  # kernels of GPUs
        with pytest.raises((ConfigError, MissingPackage), match=rf"{backend}.*(CUDA device only|go without)"):
            attend(Q, K, V, backend=backend)


@pytest.mark.parametrize(("lengths", "padding", "calls"), [((4, 4, 4), 0, 1), ((4, 4, 4), 1, 3), ((4, 8), 0, 2)])
def test_segments_of_one_length_that_fill_the_row_are_one_call(lengths, padding, calls, monkeypatch):
    made, functional = [], torch.nn.functional
    own = functional.scaled_dot_product_attention
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda *a, **b: made.append(1) or own(*a, **b))
    q, ends = torch.randn(1, 2, sum(lengths) + padding, 8), torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    CAUSAL_KERNELS["sdpa"](q, q, q, Segments.from_cu_seqlens(ends, sum(lengths) + padding))
    assert len(made) == calls
