"""Packages that are there but broken: noticed when a backend is chosen, not in the first step."""

import re
import sys

import pytest
import torch

from lab.core.errors import ConfigError
from lab.model.attention import backends
from lab.model.attention.attend import KERNELS
from lab.model.attention.backends import choose_kernel
from lab.model.attention.layout import Layout
from lab.model.attention.segments import Segments, dense_mask
from lab.model.config import Sliding
from lab.positions import distance, frequencies
from tests.model import stand_ins
from tests.model.conftest import forget_packages
from tests.refusals import refused

CUDA, HALF = torch.device("cuda"), torch.bfloat16
BROKEN = 'raise ImportError("flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E\\nsecond line")'
FAULT = "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E second line"


def forget():
    for name in [n for n in sys.modules if n.partition(".")[0] in ("flash_attn", "flash_attn_interface", "xformers")]:
        del sys.modules[name]
    forget_packages()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write packages that Python finds, and forget them afterwards."""

    def write(name, text):
        folder = tmp_path.joinpath(*name.split("."))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(text)

    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield write
    forget()


@pytest.mark.parametrize(("backend", "module"), [("flash", "flash_attn"), ("xformers", "xformers.ops")])
def test_a_broken_package_is_refused_in_one_line_where_it_is_asked_for(package, backend, module):
    name = module.partition(".")[0]
    package(name, "")
    package(module, BROKEN)
    with refused(f"train.backend={backend}: {name} is installed but cannot be imported ({FAULT})", error=ConfigError):
        backends.choose_backend(backend, CUDA, HALF)


def test_auto_prefers_torchs_own_kernel_to_the_same_one_of_a_package(package, tmp_path):
    imports = tmp_path / "imports"
    package("flash_attn", f"open({str(imports)!r}, 'a').write('once ')")
    assert backends.choose_backend("auto", CUDA, HALF) == (
        "varlen",
        "torch's variable-length kernel is FlashAttention 2",
    )
    assert not imports.exists()
    for _ in range(3):
        assert backends.choose_backend("flash", CUDA, HALF) == ("flash", "set in the config")
    assert imports.read_text() == "once "


@pytest.fixture
def activated(package, monkeypatch):
    """Note what is activated on an emulated GPU of compute capability 9.0."""
    activated = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", activated.append)
    monkeypatch.setattr(backends, "check_flash", activated.append)
    return activated


def test_a_newer_kernel_is_activated_and_tried_once(activated, package):
    for name in ("flash_attn_interface", "flash_attn", "flash_attn.cute"):
        package(name, "")
    for _ in range(3):
        assert backends.choose_backend("auto", CUDA, HALF) == (
            "varlen",
            "torch's variable-length kernel is FlashAttention 3",
        )
    assert activated == ["FA3", CUDA]


def fail(*_):
    raise TypeError("fwd() takes 30 arguments\nsecond line")


FAULTS = {
    "capability": (torch.cuda, "get_device_capability", lambda device: (8, 0)),
    "package": (torch.nn.attention, "activate_flash_attention_impl", fail),
    "trial": (backends, "check_flash", fail),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_newer_kernel_is_left_out_with_the_reason(activated, package, monkeypatch, fault):
    package("flash_attn_interface", "")
    monkeypatch.setattr(*FAULTS[fault])
    name, reason = backends.choose_backend("auto", CUDA, HALF)
    assert (name, "FlashAttention 3 is not used: " in reason) == ("varlen", True)
    assert re.search(r"9\.0.*8\.0|takes 30 arguments second line", reason)


def forward_by(change=lambda out, lse: (out, lse), **options):
    """Alter what the stand-in for torch's flash attention is told or returns."""

    def kernel(q, k, v, cu_q, cu_k, max_q, max_k, dropout, causal, debug, *, window_size_left=-1):
        left = window_size_left + options.get("wider", 0) if window_size_left >= 0 else window_size_left
        cu = (cu_q[[0, -1]], cu_k[[0, -1]], len(q), len(k)) if options.get("joined") else (cu_q, cu_k, max_q, max_k)
        if options.get("grouped"):  # query head n reads key-value head n modulo their number
            k, v = (x[:, torch.arange(q.shape[1]) % x.shape[1]] for x in (k, v))
        causal = options.get("causal", causal)
        out, lse, *rest = stand_ins.flash_forward(q, k, v, *cu, dropout, causal, debug, window_size_left=left)
        return *change(out, lse), *rest

    return kernel


def backward_by(which, change):
    def kernel(*arguments, **options):
        grads = list(stand_ins.flash_backward(*arguments, **options))
        grads[which] = change(grads[which])
        return tuple(grads)

    return kernel


FORWARD, BACKWARD = "_flash_attention_forward", "_flash_attention_backward"
ONE_HEAD = torch.tensor([1, 1, 1.02, 1], dtype=torch.bfloat16)[:, None]
WRONG = {
    "output": (FORWARD, forward_by(lambda out, lse: (out * 1.02, lse))),
    "one_head": (FORWARD, forward_by(lambda out, lse: (out * ONE_HEAD, lse))),
    "nan": (FORWARD, forward_by(lambda out, lse: (out * float("nan"), lse))),
    "log2": (FORWARD, forward_by(lambda out, lse: (out, lse * 1.4427))),
    "window": (FORWARD, forward_by(wider=1)),
    "narrow": (FORWARD, forward_by(wider=-1)),
    "joined": (FORWARD, forward_by(joined=True)),
    "grouped": (FORWARD, forward_by(grouped=True)),
    "causal": (FORWARD, forward_by(causal=True)),
    **{f"gradient_{n}": (BACKWARD, backward_by(n, lambda x: x * 1.02)) for n in range(3)},
    "gradient_zero": (BACKWARD, backward_by(1, torch.zeros_like)),
}


@pytest.mark.parametrize("wrong", [None, *WRONG])
def test_the_trial_finds_a_kernel_that_computes_something_else(wrong):
    sound = {FORWARD: forward_by(), BACKWARD: stand_ins.flash_backward}
    with stand_ins.on_cpu(sound | dict([WRONG[wrong]] if wrong else [])), torch.inference_mode():
        if wrong is None:
            backends.check_flash(torch.device("cpu", 0))
        else:
            with pytest.raises(RuntimeError, match="differs by .* from attention in float32"):
                backends.check_flash(torch.device("cpu", 0))


WIDTH = 64
ROPE = frequencies("rope", head_dim=WIDTH)
IDS = torch.arange(1100)
PLAIN, STRING = distance("plain"), distance("string", shift=20, window=4)
WINDOW, PACKED = Sliding(window=9), Segments.from_lengths([500, 590], 1100)
ANCHORED = Segments.from_lengths([500, 600], 1100, anchors=(-1, 0))
LAYOUTS = {
    "row": Layout(IDS, IDS, ROPE, PLAIN, torch.float32, starts=(0,)),
    "bands": Layout(IDS, IDS, ROPE, STRING, torch.float32, starts=(0,)),
    "chunk": Layout(IDS[-9:], IDS, ROPE, PLAIN, torch.float32, starts=(0,)),
    "irregular": Layout(IDS, IDS, ROPE, PLAIN, torch.float32, mask=dense_mask(1100, 1100, IDS.device)),
    "window": Layout(IDS, IDS, ROPE, WINDOW, torch.float32, segments=PACKED, starts=(0, 0)),
    "window_anchored": Layout(IDS, IDS, ROPE, WINDOW, torch.float32, segments=ANCHORED, starts=(0, 500)),
    "window_gapped": Layout(IDS, IDS, ROPE, WINDOW, torch.float32, segments=PACKED),
}
SINGLE = torch.float32
CASES = [  # device, dtype, backend, layout, kernel
    ("cpu", SINGLE, "auto", "row", "sdpa"),
    ("cpu", SINGLE, "auto", "bands", "cpu_bands"),
    ("cpu", SINGLE, "auto", "irregular", "dense"),
    ("cpu", SINGLE, "reference", "irregular", "reference"),
    ("cuda", HALF, "varlen", "row", "varlen"),
    ("cuda", HALF, "varlen", "bands", "flash_bands"),
    ("cuda", HALF, "auto", "irregular", "dense"),
    ("cuda", SINGLE, "auto", "chunk", "sdpa"),
    *(("cuda", HALF, backend, "window", backend) for backend in ("varlen", "flash", "xformers")),
    ("cuda", HALF, "varlen", "window_anchored", "flash_bands"),
    ("cuda", HALF, "auto", "window_gapped", "dense"),
    ("cpu", SINGLE, "auto", "window", "cpu_bands"),
]


def plan(backend, layout, dtype):
    sizes = ((4, layout.q_pos), (2, layout.k_pos))
    q, k = (torch.zeros(1, heads, len(ids), WIDTH, dtype=dtype) for heads, ids in sizes)
    return choose_kernel(backend, layout, q, k)


@pytest.mark.parametrize(("device", "dtype", "backend", "layout", "kernel"), CASES, ids=str)
def test_kernels_by_layout(device, dtype, backend, layout, kernel, request):
    if device == "cuda":
        request.getfixturevalue("stood_in")
    found = plan(backend, LAYOUTS[layout], dtype)
    assert found == (kernel, SINGLE if device == "cpu" else dtype)
    assert kernel in KERNELS


@pytest.mark.parametrize(("backend", "layout"), [("xformers", "bands"), ("varlen", "irregular")])
def test_a_named_backend_that_cannot_run_a_layout_is_refused(backend, layout, stood_in):
    with pytest.raises(ConfigError, match=rf"^backend={backend}: cannot run .*; "):
        plan(backend, LAYOUTS[layout], HALF)
