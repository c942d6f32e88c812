"""Which kernel each layout is planned for, on a CPU and on a GPU."""

import pytest
import torch

from lab.errors import ConfigError
from lab.model.attention.layout import Layout
from lab.model.attention.plan import KERNELS, plan_for
from lab.model.attention.segments import Segments
from lab.model.attention.visibility import Visibility
from lab.positions import distance, frequencies

WIDTH = 64
ROPE = frequencies("rope", head_dim=WIDTH)
IDS = torch.arange(1100)
PLAIN, STRING = distance("plain"), distance("string", shift=20, window=4)
ANCHORED = Segments.from_lengths([500, 600], 1100, anchors=(-1, 0))
LAYOUTS = {
    "row": Layout.of(IDS, IDS, ROPE, PLAIN, torch.float32, starts=(0,)),
    "bands": Layout.of(IDS, IDS, ROPE, STRING, torch.float32, starts=(0,)),
    "chunk": Layout.of(IDS[-9:], IDS, ROPE, PLAIN, torch.float32, starts=(0,)),
    "decoding": Layout.of(IDS[-1:], IDS, ROPE, PLAIN, torch.float32, starts=(0,)),
    "anchored": Layout.of(IDS, IDS, ROPE, PLAIN, torch.float32, segments=ANCHORED, starts=(0, 500)),
    "irregular": Layout.of(
        IDS,
        IDS,
        ROPE,
        PLAIN,
        torch.float32,
        visible=Visibility(1100, 1100, IDS.device, q_pos=IDS[None], k_pos=IDS[None]),
    ),
}
HALF, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64
CASES = [  # device, dtype, backend, layout, kernel
    ("cpu", SINGLE, "auto", "row", "sdpa"),
    ("cpu", SINGLE, "auto", "bands", "cpu_bands"),
    ("cpu", SINGLE, "auto", "chunk", "cpu_bands"),
    ("cpu", HALF, "auto", "anchored", "cpu_bands"),
    ("cpu", SINGLE, "auto", "irregular", "dense"),
    ("cpu", SINGLE, "reference", "irregular", "reference"),
    ("cuda", HALF, "varlen", "row", "varlen"),
    ("cuda", HALF, "varlen", "bands", "flash_bands"),
    ("cuda", HALF, "auto", "irregular", "dense"),
    ("cuda", SINGLE, "auto", "chunk", "efficient_bands"),
    ("cuda", SINGLE, "auto", "bands", "efficient_bands"),
    ("cuda", DOUBLE, "auto", "bands", "dense"),
]


def plan(backend, layout, dtype):
    n_q, n_k = layout.q_pos.shape[-1], layout.k_pos.shape[-1]
    return plan_for(
        backend, layout, torch.zeros(1, 4, n_q, WIDTH, dtype=dtype), torch.zeros(1, 2, n_k, WIDTH, dtype=dtype)
    )


@pytest.mark.parametrize(("device", "dtype", "backend", "layout", "kernel"), CASES, ids=str)
def test_kernels_by_layout(device, dtype, backend, layout, kernel, request):
    if device == "cuda":
        request.getfixturevalue("stood_in")
    found = plan(backend, LAYOUTS[layout], dtype)
    assert found.kernel == kernel
    assert found.dtype == (SINGLE if device == "cpu" else dtype)
    assert kernel in KERNELS


@pytest.mark.parametrize(("backend", "layout"), [("xformers", "bands"), ("varlen", "irregular")])
def test_a_named_backend_that_cannot_run_a_layout_is_refused(backend, layout, stood_in):
    with pytest.raises(ConfigError, match=rf"^backend={backend}: cannot run .*; "):
        plan(backend, LAYOUTS[layout], HALF)
