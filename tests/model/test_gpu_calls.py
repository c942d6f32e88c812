"""How GPU kernels are called: how often, by which signature, and what is left to others."""

import contextlib
import importlib.util

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lab.errors import ConfigError
from lab.model.attention import attend, backends, devices
from lab.model.attention.layout import Layout
from lab.model.attention.plan import plan_for
from lab.model.attention.span_kernels import suits
from lab.positions import distance
from tests.model import stand_ins
from tests.model.dense import attention_by_distance, dense_attention, draw, rule
from tests.model.gpu_cases import (
    BFLOAT16_TOL,
    HEADS,
    KV_HEADS,
    METHODS,
    ROPE,
    WIDTH,
    assert_equal,
    by_equation,
    documents,
    exact,
    leaves_on,
    packed_layout,
)


class Launches(TorchDispatchMode):
    """Count the operators that run, views apart."""

    def __init__(self):
        super().__init__()
        self.n = 0
        self.widest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.n += 1
            self.widest = max(self.widest, out.numel() if isinstance(out, torch.Tensor) else 0)
        return out


@contextlib.contextmanager
def silent_kernels():
    """Count a kernel as one operator whatever its stand-in does."""
    quiet = {name: unseen(kernel) for name, kernel in stand_ins.OPERATORS.items()}
    with stand_ins.on_cpu(quiet):
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


@pytest.mark.parametrize(("method", "n_bands"), [("string", 2), ("self_extend", 2), ("rerope", 2), ("dca", 3)])
def test_a_band_is_one_call_of_flash_attention_in_each_pass(monkeypatch, method, n_bands):
    monkeypatch.setattr(devices, "kind", lambda device: "cuda")
    calls = []
    kernels = {
        name: lambda *args, name=name, **kwargs: calls.append(name) or stand_ins.OPERATORS[name](*args, **kwargs)
        for name in ("_flash_attention_forward", "_flash_attention_backward")
    }
    with stand_ins.on_cpu(kernels):
        leaves = leaves_on("cpu", torch.bfloat16, 18, 190, 190)
        layout = packed_layout([90, 3, 96], 190, "cpu", torch.bfloat16, METHODS[method][0])
        attend(*leaves, layout=layout, backend="varlen").sum().backward()
    assert [calls.count(name) for name in kernels] == [n_bands, n_bands]


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


def test_bands_are_merged_outside_of_varlen_attn_which_drops_the_gradient_of_what_merges_them(stood_in, monkeypatch):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", lambda *_, **__: pytest.fail("called"))
    leaves = leaves_on("cpu", torch.bfloat16, 16, 90, 90)
    method, rel = METHODS["rerope"]
    out = attend(*leaves, layout=packed_layout([60, 30], 90, "cpu", torch.bfloat16, method), backend="varlen")
    copies = exact(leaves)
    expected = by_equation(copies, method, rel, *documents([60, 30], 0))
    assert_equal(out, leaves, expected, copies, 2 * BFLOAT16_TOL)


def test_decoding_lists_no_tokens(monkeypatch):
    """One run of keys is read where it stands: nothing as long as the cache is made for its sake."""
    monkeypatch.setattr(devices, "kind", lambda device: "cuda")
    q, k, v = (x.detach() for x in leaves_on("cpu", torch.bfloat16, 17, 1, 3000))
    method, _ = METHODS["string"]
    ids = torch.arange(3000)
    layout = Layout.of(ids[-1:], ids, ROPE, method, torch.bfloat16, starts=(0,))
    keys = [k for _ in layout.k_rotations]
    with silent_kernels(), Launches() as launches:
        plan_for("varlen", layout, q, v).run(q, keys, v, 0)
    assert launches.widest < 3000


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


def test_doubles_on_a_gpu_are_run_pair_by_pair(stood_in):
    leaves = draw(15, 1, HEADS, KV_HEADS, 40, 40, WIDTH)
    for method, rel in [METHODS["string"], (distance("plain"), lambda i, m, n: i)]:
        out = attend(*leaves, layout=packed_layout([30, 10], 40, "cpu", torch.float64, method))
        docs, ids = documents([30, 10], 0)
        expected = by_equation(leaves, method, rel, docs, ids)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_auto_takes_a_variable_length_kernel_for_half_precision_only(device):
    of_3 = importlib.util.find_spec("flash_attn_interface")
    there = device.type == "cpu" or (importlib.util.find_spec("flash_attn") and not of_3)
    assert backends.choose("auto", device, torch.bfloat16)[0] == ("flash" if there else "varlen")
    assert backends.choose("auto", device, torch.float32)[0] == "sdpa"
    with pytest.raises(ConfigError, match=r"^train\.backend=varlen: takes float16 or bfloat16, not float32; use sdpa"):
        backends.choose("varlen", device, torch.float32)


def test_fused_kernels_suit_what_they_document(stood_in):
    assert suits(torch.zeros(1, 512))
    assert suits(torch.zeros(1, 64, dtype=torch.float16))
    assert not suits(torch.zeros(1, 12))
    assert not suits(torch.zeros(1, 64, dtype=torch.float64))
