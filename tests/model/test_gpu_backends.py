"""Every GPU backend against attention by definition: on a GPU by its kernels, on any machine by their stand-ins."""

import contextlib
import importlib.util
import math
import sys
import types

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lab.errors import ConfigError
from lab.model import backends, devices, fused
from lab.model.attention import attend, attend_cached
from lab.model.cache import KeyCache
from lab.model.layout import Layout
from lab.model.segments import Segments
from lab.positions import distance, frequencies
from tests.model import stand_ins
from tests.model.dense import attention_by_distance, dense_attention, draw, rule

BFLOAT16_TOL = 3e-2  # rotated queries, keys, weights and outputs of order one to four are each rounded to 8 bits
FLOAT32_TOL = 3e-4  # a GPU's float32 products may be tensor-core sums in another order
HEADS, KV_HEADS, WIDTH = 4, 2, 64
ROPE = frequencies("rope", head_dim=WIDTH)
SPEEDS = [10000.0 ** (-2 * j / WIDTH) for j in range(WIDTH // 2)]
FLOAT32, BFLOAT16 = (torch.float32, FLOAT32_TOL), (torch.bfloat16, BFLOAT16_TOL)


def module(monkeypatch, name, **contents):
    """Put a package where imports find it."""
    made = types.ModuleType(name)
    made.__spec__ = importlib.util.spec_from_loader(name, None)
    made.__path__ = []
    vars(made).update(contents)
    monkeypatch.setitem(sys.modules, name, made)


def forget_packages():
    backends.installed.cache_clear()
    backends.import_fault.cache_clear()


@pytest.fixture
def stood_in(monkeypatch):
    """Let the CPU answer for a GPU on which every package is installed."""
    monkeypatch.setattr(devices, "kind", lambda device: "cuda")
    module(monkeypatch, "flash_attn", flash_attn_varlen_func=stand_ins.flash_attn_varlen_func)
    for name in ("xformers", "xformers.ops", "xformers.ops.fmha"):
        module(monkeypatch, name, memory_efficient_attention=stand_ins.memory_efficient_attention)
    bias = stand_ins.BlockDiagonalCausalFromBottomRightMask
    module(monkeypatch, "xformers.ops.fmha.attn_bias", BlockDiagonalCausalFromBottomRightMask=bias)
    monkeypatch.setattr("lab.model.flex.compiled", lambda: stand_ins.flex_attention)
    forget_packages()
    with stand_ins.kernels_on_cpu():
        yield "cpu"
    forget_packages()


gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(params=[pytest.param("cuda", marks=gpu), "stand_in"])
def device(request):
    return torch.device("cuda" if request.param == "cuda" else request.getfixturevalue("stood_in"))


def needs(backend, device):
    """Skip on a GPU for which a package is missing."""
    package = {"flash": "flash_attn", "xformers": "xformers"}.get(backend)
    if package and device.type == "cuda" and importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")


def cases(*named):
    return pytest.mark.parametrize(
        ("backend", "dtype", "tolerance"),
        [pytest.param(name, *kind, id=f"{name}_{str(kind[0])[6:]}") for name, kind in named],
    )


HALF_KERNELS = [(name, BFLOAT16) for name in ("sdpa", "varlen", "flash", "xformers")]
kernels = cases(("sdpa", FLOAT32), *HALF_KERNELS)
tiled = cases(
    ("sdpa", FLOAT32),
    ("sdpa", BFLOAT16),
    ("varlen", BFLOAT16),
    ("flash", BFLOAT16),
    ("flex", FLOAT32),
    ("flex", BFLOAT16),
)


def leaves_on(device, dtype, seed, n_q, n_k, rows=1):
    drawn = draw(seed, rows, HEADS, KV_HEADS, n_q, n_k, WIDTH)
    return [x.to(device, dtype).requires_grad_() for x in drawn]


def exact(leaves):
    return [x.detach().cpu().double().requires_grad_() for x in leaves]


def assert_equal(out, leaves, expected, copies, tolerance):
    """Compare outputs, and gradients under a weight on every output."""
    torch.testing.assert_close(out.detach().cpu().double(), expected.detach(), rtol=0, atol=tolerance)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    weight = weight.to(out.dtype)
    got = torch.autograd.grad((out * weight.to(out.device)).float().sum(), leaves)
    wanted = torch.autograd.grad((expected * weight.double()).sum(), copies)
    for x, y in zip(got, wanted, strict=True):
        assert float((x.cpu().double() - y).norm() / y.norm()) < tolerance


def packed_layout(lengths, total, device, dtype, method="plain", anchors=None):
    segments = Segments.from_lengths(lengths, total, device, anchors)
    method = distance(method) if isinstance(method, str) else method
    ids, starts = segments.position_ids, (0,) * len(lengths)
    return Layout.of(ids, ids, ROPE, method, dtype, segments=segments, starts=starts)


def documents(lengths, padding):
    docs = [s for s, n in enumerate(lengths) for _ in range(n)] + [-1] * padding
    ids = [i for n in [*lengths, padding] for i in range(n)]
    return [docs], [ids]


@kernels
@pytest.mark.parametrize("padding", [0, 5], ids=["full", "padded"])
def test_packed_rows_equal_the_segments_alone(device, backend, dtype, tolerance, padding):
    needs(backend, device)
    lengths = [17, 1, 40, 6]
    leaves = leaves_on(device, dtype, 1, 64 + padding, 64 + padding)
    out = attend(*leaves, layout=packed_layout(lengths, 64 + padding, device, dtype), backend=backend)
    copies = exact(leaves)
    docs, ids = documents(lengths, padding)
    expected = dense_attention(*copies, 10000.0, ids, ids, rule("document", docs))
    assert_equal(out, leaves, expected, copies, tolerance)


@kernels
def test_packed_rows_see_their_anchors(device, backend, dtype, tolerance):
    needs(backend, device)
    lengths, anchors = [9, 20, 12], (-1, 0, 9)
    leaves = leaves_on(device, dtype, 2, 44, 44)
    out = attend(*leaves, layout=packed_layout(lengths, 44, device, dtype, anchors=anchors), backend=backend)
    copies = exact(leaves)
    docs, ids = documents(lengths, 3)
    alone = rule("document", docs)

    def sees(b, m, n):
        return alone(b, m, n) or (docs[0][m] >= 0 and n == anchors[docs[0][m]])

    assert_equal(out, leaves, dense_attention(*copies, 10000.0, ids, ids, sees), copies, tolerance)


@kernels
@pytest.mark.parametrize("n_q", [1, 12, 33], ids=["decoding", "chunk", "whole_row"])
def test_plain_rows_equal_attention_by_definition(device, backend, dtype, tolerance, n_q):
    needs(backend, device)
    leaves = leaves_on(device, dtype, 3, n_q, 33, rows=2)
    out = attend(*leaves, backend=backend)
    copies = exact(leaves)
    ids = [list(range(33))] * 2
    expected = dense_attention(*copies, 10000.0, [row[33 - n_q :] for row in ids], ids, rule("causal", None))
    assert out.dtype == dtype
    assert_equal(out, leaves, expected, copies, tolerance)


@kernels
def test_a_row_of_nothing_but_padding_comes_back_as_zeros(device, backend, dtype, tolerance):
    needs(backend, device)
    leaves = leaves_on(device, dtype, 4, 8, 8)
    out = attend(*leaves, layout=packed_layout([], 8, device, dtype), backend=backend)
    assert out.shape == leaves[0].shape
    assert (out == 0).all()


METHODS = {  # the lab's method, and its equation as a function of i = m - n, m and n
    "string": (distance("string", shift=25, window=6), lambda i, m, n: i if i < 25 else i - 25 + 6),
    "dca": (distance("dca", train_len=40), None),
    "self_extend": (
        distance("self_extend", group=4, window=16),
        lambda i, m, n: i if i < 16 else m // 4 - n // 4 + 16 - 16 // 4,
    ),
    "rerope": (distance("rerope", window=20), lambda i, m, n: min(i, 20)),
    "leaky_rerope": (
        distance("leaky_rerope", window=20, leak=4.0, log_n=32),
        lambda i, m, n: i if i < 20 else 20 + (i - 20) / 4,
    ),
}
methods = pytest.mark.parametrize(("method", "rel"), METHODS.values(), ids=METHODS)


def by_equation(copies, method, rel, docs, ids):
    """Attend pair by pair; dca's chunks are left to the method's own matrix, which its tests judge."""
    if rel is None:
        matrix = method.rel_pos(torch.tensor(ids[0]), torch.tensor(ids[0])).nan_to_num()
        return attention_by_distance(*copies, SPEEDS, lambda b, m, n: matrix[m, n], rule("document", docs))
    log_n = getattr(method.config, "log_n", None)
    factor = {} if not log_n else {"factor": lambda m: max(1.0, math.log(ids[0][m] + 1) / math.log(log_n))}
    places = ids[0]
    return attention_by_distance(
        *copies,
        SPEEDS,
        lambda b, m, n: rel(places[m] - places[n], places[m], places[n]),
        rule("document", docs),
        **factor,
    )


@tiled
@methods
def test_distance_methods_on_packed_rows_equal_their_equation(device, backend, dtype, tolerance, method, rel):
    needs(backend, device)
    lengths, padding = [45, 1, 90, 21], 3
    leaves = leaves_on(device, dtype, 5, 160, 160)
    layout = packed_layout(lengths, 160, device, dtype, method)
    out = attend(*leaves, layout=layout, backend=backend)
    copies = exact(leaves)
    expected = by_equation(copies, method, rel, *documents(lengths, padding))
    assert_equal(out, leaves, expected, copies, 2 * tolerance)


@tiled
@methods
@pytest.mark.parametrize("n_q", [1, 50, 90], ids=["decoding", "chunk", "prefill"])
def test_distance_methods_on_rows_equal_their_equation(device, backend, dtype, tolerance, method, rel, n_q):
    needs(backend, device)
    leaves = leaves_on(device, dtype, 6, n_q, 90, rows=2 if n_q == 50 else 1)
    out = attend(*leaves, distance=method, backend=backend)
    copies = exact(leaves)
    row = list(range(90))
    expected = by_equation(copies, method, rel, [[0] * 90] * len(out), [row] * len(out))
    assert out.dtype == dtype
    assert_equal(out, leaves, expected, copies, 2 * tolerance)


@tiled
def test_distance_methods_see_anchors(device, backend, dtype, tolerance):
    needs(backend, device)
    if backend == "flex":
        pytest.skip("flex asks the same predicate as dense masks")
    method, rel = METHODS["string"]
    lengths, anchors = [40, 50, 6], (-1, 0, 40)
    segments = Segments.from_lengths(lengths, 100, device, anchors)
    leaves = leaves_on(device, dtype, 7, 100, 100)
    ids = torch.arange(100, device=device)
    layout = Layout.of(ids, ids, ROPE, method, dtype, segments=segments, starts=(0, 40, 90))
    out = attend(*leaves, layout=layout, backend=backend)
    copies = exact(leaves)
    docs, _ = documents(lengths, 4)
    alone = rule("document", docs)

    def sees(b, m, n):
        return alone(b, m, n) or (docs[0][m] >= 0 and n == anchors[docs[0][m]])

    expected = attention_by_distance(*copies, SPEEDS, lambda b, m, n: rel(m - n, m, n), sees)
    assert_equal(out, leaves, expected, copies, 2 * tolerance)


@pytest.mark.parametrize("mask", ["document", "anchor"])
@pytest.mark.parametrize(("backend", "rows"), [("flex", 1), ("flex", 2), ("sdpa", 2)])
@pytest.mark.parametrize(("dtype", "tolerance"), [FLOAT32, BFLOAT16], ids=["float32", "bfloat16"])
def test_any_mask_equals_attention_by_definition(device, backend, rows, mask, dtype, tolerance):
    docs = [[0] * 3 + [1] * 80 + [2] * 50 + [-1] * 7, [0] * 60 + [1] * 40 + [0] * 40][:rows]
    leaves = leaves_on(device, dtype, 8, 140, 140, rows=rows)
    method, rel = METHODS["string"]
    out = attend(*leaves, distance=method, doc_ids=torch.tensor(docs, device=device), mask=mask, backend=backend)
    copies = exact(leaves)
    expected = attention_by_distance(*copies, SPEEDS, lambda b, m, n: rel(m - n, m, n), rule(mask, docs))
    assert_equal(out, leaves, expected, copies, 2 * tolerance)


@tiled
@pytest.mark.parametrize("method", ["plain", "string"])
def test_chunks_on_a_growing_cache_equal_one_pass(device, backend, dtype, tolerance, method):
    needs(backend, device)
    made, rel = METHODS.get(method, (distance("plain"), lambda i, m, n: i))
    q, k, v = (x.detach() for x in leaves_on(device, dtype, 10, 60, 60, rows=2))
    maps = len({band.k_map for band in made.bands})
    cache, outs = KeyCache(1, 2, KV_HEADS, 60, WIDTH, q.device, n_maps=maps), []
    for start, stop in ((0, 30), (30, 59), (59, 60)):
        ids = torch.arange(stop, device=device)
        layout = Layout.of(ids[start:], ids, ROPE, made, dtype, starts=(0,), n_rotated=start)
        part = (x[:, :, start:stop] for x in (q, k, v))
        with torch.no_grad():
            outs.append(attend_cached(*part, layer=0, backend=backend, layout=layout, cache=cache))
        cache.advance(stop - start)
    wide = [x.cpu().double() for x in (q, k, v)]
    expected = attention_by_distance(*wide, SPEEDS, lambda b, m, n: rel(m - n, m, n), rule("causal", None))
    torch.testing.assert_close(torch.cat(outs, dim=2).cpu().double(), expected, rtol=0, atol=tolerance)


class Launches(TorchDispatchMode):
    """Count the operators that run, views apart."""

    def __init__(self):
        super().__init__()
        self.n = 0
        self.widest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.n += not func.is_view
        self.widest = max([self.widest, *(x.numel() for x in (out,) if isinstance(x, torch.Tensor))])
        return out


@contextlib.contextmanager
def silent_kernels():
    """Count a kernel as one operator whatever its stand-in does."""
    quiet = {name: unseen(kernel) for name, kernel in stand_ins.ATEN.items()}
    with stand_ins.kernels_on_cpu(quiet):
        yield


def unseen(kernel):
    def run(*args, **kwargs):
        with torch.utils._python_dispatch._disable_current_modes():
            return kernel(*args, **kwargs)

    return run


@pytest.mark.parametrize("backend", ["sdpa", "varlen"])
@pytest.mark.parametrize("method", ["plain", "string", "dca", "rerope"])
def test_launches_do_not_grow_with_the_number_of_segments(monkeypatch, backend, method):
    monkeypatch.setattr(devices, "kind", lambda device: "cuda")
    dtype = torch.float32 if backend == "sdpa" else torch.bfloat16
    made = METHODS[method][0] if method in METHODS else distance("plain")
    counts = []
    with silent_kernels():
        for n in (4, 40):
            leaves = leaves_on("cpu", dtype, 11, 50 * n, 50 * n)
            layout = packed_layout([50] * n, 50 * n, "cpu", dtype, made)
            attend(*leaves, layout=layout, backend=backend).sum().backward()  # what is kept for all layers is made
            with Launches() as launches:
                attend(*leaves, layout=layout, backend=backend).sum().backward()
            counts.append(launches.n)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("backend", ["sdpa", "varlen"])
def test_no_mask_is_made_for_a_chunk(monkeypatch, backend):
    monkeypatch.setattr(devices, "kind", lambda device: "cuda")
    q, k, v = leaves_on("cpu", torch.bfloat16, 12, 300, 4000)
    with silent_kernels(), Launches() as launches:
        attend(q, k, v, backend=backend)
    assert launches.widest < 300 * 4000


@pytest.mark.parametrize("signature", ["varlen_attn_2_11", "varlen_attn_2_12"])
@pytest.mark.parametrize("kv_heads", [KV_HEADS, HEADS])
def test_varlen_attn_of_every_torch_is_called_as_it_asks(stood_in, monkeypatch, signature, kv_heads):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", getattr(stand_ins, signature))
    drawn = draw(13, 1, HEADS, kv_heads, 30, 30, WIDTH)
    leaves = [x.bfloat16().requires_grad_() for x in drawn]
    out = attend(*leaves, layout=packed_layout([20, 10], 30, "cpu", torch.bfloat16), backend="varlen")
    copies = exact(leaves)
    docs, ids = documents([20, 10], 0)
    expected = dense_attention(*copies, 10000.0, ids, ids, rule("document", docs))
    assert_equal(out, leaves, expected, copies, BFLOAT16_TOL)


@pytest.mark.parametrize("width", [12, 264])
def test_heads_that_no_half_precision_kernel_takes_are_left_to_sdpa(stood_in, width):
    drawn = [x.bfloat16().requires_grad_() for x in draw(14, 1, 2, 1, 9, 9, width)]
    method = distance("string", shift=4, window=2)
    out = attend(*drawn, distance=method)
    copies = exact(drawn)
    speeds = [10000.0 ** (-2 * j / width) for j in range(width // 2)]
    expected = attention_by_distance(
        *copies, speeds, lambda b, m, n: m - n if m - n < 4 else m - n - 2, rule("causal", None)
    )
    assert_equal(out, drawn, expected, copies, 2 * BFLOAT16_TOL)
    with pytest.raises(ConfigError, match=f"^backend=varlen: cannot run head_dim={width}; use sdpa"):
        attend(*drawn, distance=method, backend="varlen")


def test_doubles_on_a_gpu_are_run_by_plain_products(stood_in):
    leaves = draw(15, 1, HEADS, KV_HEADS, 40, 40, WIDTH)
    for method, rel in [METHODS["string"], (distance("plain"), lambda i, m, n: i)]:
        out = attend(*leaves, layout=packed_layout([30, 10], 40, "cpu", torch.float64, method))
        docs, ids = documents([30, 10], 0)
        expected = by_equation(leaves, method, rel, docs, ids)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_auto_takes_a_variable_length_kernel_for_half_precision_only(device):
    there = device.type == "cpu" or importlib.util.find_spec("flash_attn")
    assert backends.choose("auto", device, torch.bfloat16)[0] == ("flash" if there else "varlen")
    assert backends.choose("auto", device, torch.float32)[0] == "sdpa"
    with pytest.raises(ConfigError, match=r"^train\.backend=varlen: takes float16 or bfloat16, not float32; use sdpa"):
        backends.choose("varlen", device, torch.float32)


def test_fused_kernels_suit_what_they_document(stood_in):
    assert fused.suits_flash(torch.zeros(1, 256, dtype=torch.bfloat16))
    assert not fused.suits_flash(torch.zeros(1, 256))
    assert fused.suits(torch.zeros(1, 512))
    assert not fused.suits(torch.zeros(1, 12))
    assert not fused.suits(torch.zeros(1, 64, dtype=torch.float64))
